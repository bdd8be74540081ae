#include "tests/fake_device/nccl_device.hpp"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "tests/fake_device/world.hpp"

namespace troupe::tests::fake_device {
namespace {

/// Which stream of the devices a stream of the library stands for. Under the world's mutex.
std::map<void*, int>& streams_of_library() {
  static auto* const all = new std::map<void*, int>;
  return *all;
}

void* translate(void* address) {
  return the_memory().contains(address) ? the_memory().seen_by_device(address) : address;
}

/// An operation in place does not write its own part again: what others send goes beside it.
void note_use(void* stream, const char* what, const void* from, const void* to) {
  auto& world = the_world();
  const std::scoped_lock lock(world.mutex);
  const auto found = streams_of_library().find(stream);
  if (found == streams_of_library().end()) return;
  world.tasks.begin(found->second, what);
  if (from != nullptr) world.tasks.read(the_memory().piece_of(from), found->second);
  const bool broadcasts_own = std::string(what) == "ncclBroadcast" && from == to;
  if (to != nullptr && !broadcasts_own)
    world.tasks.written(the_memory().piece_of(to), found->second);
}

class nccl_device final : public engine::nccl::device {
 public:
  nccl_device(const fake_nccl::controls& library, c10::Device on)
      : library_(library),
        guard_(on.type()),
        on_(on),
        stream_(guard_.getStreamFromGlobalPool(on, true)),
        handle_(library.make_stream(on.index())) {
    library.see_memory(translate, note_use);
    const std::scoped_lock lock(the_world().mutex);
    streams_of_library()[handle_] = index_of(stream_);
  }
  nccl_device(const nccl_device&) = delete;
  nccl_device& operator=(const nccl_device&) = delete;
  ~nccl_device() override {
    {
      const std::scoped_lock lock(the_world().mutex);
      streams_of_library().erase(handle_);
    }
    library_.drop_stream(handle_);
  }

  result<void> enter() override {
    library_.enter_device(on_.index());
    guard_.setDevice(on_);
    return {};
  }
  engine::nccl::stream_handle stream() override { return handle_; }

  result<std::unique_ptr<engine::nccl::mark>> mark_own() override {
    return std::make_unique<end_mark>(*this, library_.mark(handle_));
  }
  result<std::unique_ptr<engine::nccl::mark>> mark_callers() override {
    const std::scoped_lock lock(the_world().mutex);
    return std::make_unique<clock_mark>(the_world().tasks.record(index_of(guard_.getStream(on_))));
  }
  result<void> wait_for(engine::nccl::mark& earlier) override {
    const std::scoped_lock lock(the_world().mutex);
    the_world().tasks.block(index_of(stream_), static_cast<clock_mark&>(earlier).clock);
    return {};
  }
  result<void> run(const std::function<void()>& kernels) override {
    fake_nccl::post_kernels(library_, handle_, [stream = stream_, kernels] {
      const c10::StreamGuard here(stream);
      const auto before = allocations_of_thread();
      kernels();
      const std::scoped_lock lock(the_world().mutex);
      the_world().found.late_allocations += allocations_of_thread() - before;
    });
    return {};
  }

 private:
  /// Of the library's stream. Once it is reached the host has waited for what the stream was given.
  struct end_mark final : engine::nccl::mark {
    end_mark(nccl_device& whose, std::uint64_t there) : of(whose), at(there) {}
    result<bool> reached() override {
      if (of.library_.reached(of.handle_, at) == 0) return false;
      return of.guard_.queryStream(of.stream_);
    }
    nccl_device& of;
    const std::uint64_t at;
  };

  /// Of a stream of the device, whose operators have all run when it is made.
  struct clock_mark final : engine::nccl::mark {
    explicit clock_mark(const vector_clock& now) : clock(now) {}
    result<bool> reached() override { return true; }
    const vector_clock clock;
  };

  const fake_nccl::controls& library_;
  const c10::impl::VirtualGuardImpl guard_;
  const c10::Device on_;
  const c10::Stream stream_;
  void* const handle_;
};

}  // namespace

std::shared_ptr<void> hold_memory(const at::Tensor& whose, bool is_written) {
  auto* const address = whose.storage().mutable_data();
  auto* const numbers = static_cast<std::byte*>(whose.data_ptr());
  if (!the_memory().contains(address)) return {std::make_shared<at::Tensor>(whose), numbers};
  // Nothing else uses a device's last stream.
  const int stream = (whose.device().index() + 1) * streams_per_device - 1;
  auto& world = the_world();
  const std::scoped_lock lock(world.mutex);
  world.tasks.begin(stream, is_written ? "a library that receives" : "a library that sends");
  if (is_written)
    world.tasks.written(the_memory().piece_of(address), stream);
  else
    world.tasks.read(the_memory().piece_of(address), stream);
  return {the_memory().seen_by_device(numbers), [whose, stream](void*) {
            const std::scoped_lock again(the_world().mutex);
            the_world().tasks.host_waits(stream);
          }};
}

std::shared_ptr<engine::nccl::device> make_nccl_device(const fake_nccl::controls& library,
                                                       c10::Device on) {
  return std::make_shared<nccl_device>(library, on);
}

}  // namespace troupe::tests::fake_device
