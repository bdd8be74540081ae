#pragma once

#include <dlfcn.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "engine/collective/nccl/device.hpp"
#include "tests/fake_nccl/control.hpp"

namespace troupe::tests::fake_nccl {

/// The functions that the NCCL of tests has besides NCCL's.
struct controls {
#define TROUPE_FAKE_NCCL_MEMBER(name, symbol, returns, parameters) \
  returns(*name) parameters = nullptr;
  TROUPE_FAKE_NCCL_CONTROLS(TROUPE_FAKE_NCCL_MEMBER)
#undef TROUPE_FAKE_NCCL_MEMBER

  /// Of the copy of the library at this path.
  explicit controls(const std::string& path) {
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
#define TROUPE_FAKE_NCCL_LOOK_UP(name, symbol, returns, parameters)       \
  name = reinterpret_cast<returns(*) parameters>(dlsym(library, symbol)); \
  if (name == nullptr) throw std::runtime_error(path + " has no " + symbol);
    TROUPE_FAKE_NCCL_CONTROLS(TROUPE_FAKE_NCCL_LOOK_UP)
#undef TROUPE_FAKE_NCCL_LOOK_UP
  }
};

/// Queues kernels on a stream, which keeps them until they have run.
inline void post_kernels(const controls& fake, void* stream, std::function<void()> kernels) {
  auto* const kept = new std::function<void()>(std::move(kernels));
  fake.post(
      stream,
      [](void* argument) {
        const std::unique_ptr<std::function<void()>> own(
            static_cast<std::function<void()>*>(argument));
        (*own)();
      },
      kept);
}

/// A device whose memory is the host's: a stream of its own, and one that stands for the callers'.
class device final : public engine::nccl::device {
 public:
  device(const controls& fake, int index)
      : fake_(fake),
        index_(index),
        own_(fake.make_stream(index)),
        callers_(fake.make_stream(index)) {}
  device(const device&) = delete;
  device& operator=(const device&) = delete;
  ~device() override {
    fake_.drop_stream(own_);
    fake_.drop_stream(callers_);
  }

  /// Queues work on one of the streams.
  template <class Work>
  void post(void* stream, Work& work) {
    fake_.post(
        stream, [](void* argument) { (*static_cast<Work*>(argument))(); }, &work);
  }
  [[nodiscard]] void* own() const { return own_; }
  [[nodiscard]] void* callers() const { return callers_; }

  result<void> enter() override {
    fake_.enter_device(index_);
    return {};
  }
  engine::nccl::stream_handle stream() override { return own_; }
  result<std::unique_ptr<engine::nccl::mark>> mark_own() override { return mark_of(own_); }
  result<std::unique_ptr<engine::nccl::mark>> mark_callers() override { return mark_of(callers_); }
  result<void> wait_for(engine::nccl::mark& earlier) override {
    auto& here = static_cast<point&>(earlier);
    fake_.wait_for(own_, here.stream, here.at);
    return {};
  }
  result<void> run(const std::function<void()>& kernels) override {
    post_kernels(fake_, own_, kernels);
    return {};
  }

 private:
  struct point final : engine::nccl::mark {
    point(const controls& of, void* on, std::uint64_t there) : fake(of), stream(on), at(there) {}
    result<bool> reached() override { return fake.reached(stream, at) != 0; }
    const controls& fake;
    void* const stream;
    const std::uint64_t at;
  };
  result<std::unique_ptr<engine::nccl::mark>> mark_of(void* stream) {
    return std::make_unique<point>(fake_, stream, fake_.mark(stream));
  }

  const controls& fake_;
  const int index_;
  void* const own_;
  void* const callers_;
};

}  // namespace troupe::tests::fake_nccl
