// Communicators on LibTorch's generic streams and events, by a backend of tests whose streams are
// those of the NCCL of tests.

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "engine/collective/nccl/communicator.hpp"
#include "engine/collective/nccl/torch_device.hpp"
#include "tests/fake_nccl/device.hpp"
#include "tests/refusal.hpp"

namespace {

namespace nccl = troupe::engine::nccl;
namespace fake = troupe::tests::fake_nccl;
using Catch::Matchers::ContainsSubstring;
using nccl::action;
using troupe::errc;
using troupe::result;

constexpr auto own_type = c10::DeviceType::PrivateUse1;
constexpr int devices = 2;

const fake::controls& library() {
  static const fake::controls all(TROUPE_FAKE_NCCL);
  return all;
}

/// A backend of two devices, of which there are streams and events alone.
struct guard_impl final : c10::impl::DeviceGuardImplInterface {
  struct event {
    void* stream;
    std::uint64_t at;
  };
  static inline thread_local int current = 0;
  static inline thread_local std::array<void*, devices> streams{};

  static c10::Stream stream_of(c10::Device on, void* stream) {
    return c10::Stream(c10::Stream::UNSAFE, on, reinterpret_cast<c10::StreamId>(stream));
  }
  static void* handle_of(const c10::Stream& stream) { return reinterpret_cast<void*>(stream.id()); }
  /// Of all threads that have chosen none.
  static void* default_of(int device) {
    static const std::array<void*, devices> all{library().make_stream(0), library().make_stream(1)};
    return all.at(static_cast<std::size_t>(device));
  }

  c10::DeviceType type() const override { return own_type; }
  c10::Device getDevice() const override {
    return {own_type, static_cast<c10::DeviceIndex>(current)};
  }
  c10::Device exchangeDevice(c10::Device to) const override {
    const auto before = getDevice();
    uncheckedSetDevice(to);
    return before;
  }
  void setDevice(c10::Device to) const override { uncheckedSetDevice(to); }
  void uncheckedSetDevice(c10::Device to) const noexcept override {
    current = to.index();
    library().enter_device(current);
  }
  c10::Stream getStream(c10::Device on) const override {
    void* const chosen = streams.at(static_cast<std::size_t>(on.index()));
    return stream_of(on, chosen != nullptr ? chosen : default_of(on.index()));
  }
  c10::Stream getDefaultStream(c10::Device on) const override {
    return stream_of(on, default_of(on.index()));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device on, bool /*high*/) const override {
    TORCH_CHECK(on.index() < devices, "invalid device ordinal");
    return stream_of(on, library().make_stream(on.index()));
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    const auto before = getStream(to.device());
    streams.at(static_cast<std::size_t>(to.device_index())) = handle_of(to);
    return before;
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return handle_of(stream); }
  c10::DeviceIndex deviceCount() const noexcept override { return devices; }
  void record(void** made, const c10::Stream& stream, c10::DeviceIndex /*device*/,
              c10::EventFlag /*flag*/) const override {
    if (*made == nullptr) *made = new event;
    *static_cast<event*>(*made) = {handle_of(stream), library().mark(handle_of(stream))};
  }
  void block(void* on, const c10::Stream& stream) const override {
    const auto& here = *static_cast<event*>(on);
    library().wait_for(handle_of(stream), here.stream, here.at);
  }
  bool queryEvent(void* of) const override {
    const auto& here = *static_cast<event*>(of);
    return library().reached(here.stream, here.at) != 0;
  }
  void destroyEvent(void* of, const c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<event*>(of);
  }
};

const c10::impl::DeviceGuardImplRegistrar registered(own_type, new guard_impl);

c10::Device device_of(int index) {
  return {own_type, static_cast<c10::DeviceIndex>(index)};
}

/// Two ranks, each on a device of the backend.
class pair_of_ranks {
 public:
  pair_of_ranks() {
    const auto found = nccl::load({.named = TROUPE_FAKE_NCCL}).value();
    const auto invited = nccl::invite(*found, 2).value();
    for (int rank = 0; rank < 2; ++rank) {
      auto on = nccl::torch_device::make(device_of(rank)).value();
      ranks_.push_back(std::make_unique<nccl::communicator>(nccl::terms{.name = "tensors",
                                                                        .library = found,
                                                                        .invited = invited,
                                                                        .rank = rank,
                                                                        .on = std::move(on)},
                                                            [](const result<void>&) {}));
    }
  }
  ~pair_of_ranks() {
    auto first = std::async(std::launch::async, [this] { ranks_[0] = nullptr; });
    ranks_[1] = nullptr;
  }

  std::future<result<void>> submit(std::size_t rank, std::vector<nccl::operation> group) {
    auto told = std::make_shared<std::promise<result<void>>>();
    ranks_[rank]->submit(std::move(group),
                         [told](const result<void>& how) { told->set_value(how); });
    return told->get_future();
  }

 private:
  std::vector<std::unique_ptr<nccl::communicator>> ranks_;
};

bool ends_well(std::future<result<void>>& ended) {
  REQUIRE(ended.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
  return ended.get().has_value();
}

nccl::operation made(action what, const at::Tensor& from, const at::Tensor& to) {
  return nccl::operation_on(what, from, to, 2).value();
}

TEST_CASE("tensors of two ranks are summed behind what each caller's stream had before") {
  pair_of_ranks both;
  const auto first = at::ones({2, 3});
  const auto second = at::full({2, 3}, 10.0);
  std::promise<void> open;
  auto opened = open.get_future();
  // Kernels of the first caller, on a stream that it has chosen, which write late.
  auto write = [&] {
    opened.wait();
    first.fill_(5);
  };
  const c10::Stream chosen = guard_impl::stream_of(device_of(0), library().make_stream(0));
  std::future<result<void>> of_first;
  {
    const c10::StreamGuard now(chosen);
    library().post(
        guard_impl::handle_of(chosen), [](void* work) { (*static_cast<decltype(write)*>(work))(); },
        &write);
    of_first = both.submit(0, {made(action::all_reduce, first, first)});
  }
  auto of_second = both.submit(1, {made(action::all_reduce, second, second)});
  CHECK(of_second.wait_for(std::chrono::milliseconds(20)) == std::future_status::timeout);
  open.set_value();
  REQUIRE(ends_well(of_first));
  REQUIRE(ends_well(of_second));
  CHECK(at::equal(first, at::full({2, 3}, 15.0)));
  CHECK(at::equal(second, first));
  CHECK(library().wrong_uses() == std::string());
}

TEST_CASE("shares of tensors are reduced, and gathered again") {
  pair_of_ranks both;
  std::vector<at::Tensor> shares;
  std::vector<at::Tensor> wholes;
  std::vector<std::future<result<void>>> ends;
  for (std::size_t rank = 0; rank < 2; ++rank) {
    const auto values = at::arange(8, at::kDouble).add(static_cast<double>(rank));
    shares.push_back(at::empty({4}, at::kDouble));
    wholes.push_back(at::empty({8}, at::kDouble));
    ends.push_back(both.submit(rank, {made(action::reduce_scatter, values, shares.back())}));
    ends.push_back(both.submit(rank, {made(action::all_gather, shares.back(), wholes.back())}));
  }
  for (auto& each : ends) REQUIRE(ends_well(each));
  for (const auto& whole : wholes)
    CHECK(at::equal(whole, at::arange(8, at::kDouble).mul(2).add(1)));
}

TEST_CASE("a device that is not there is refused with LibTorch's words") {
  check_refused(nccl::torch_device::make(device_of(7)), errc::transport_missing,
                "privateuseone:7 cannot be used: invalid device ordinal; see `troupe devices`");
  CHECK_THAT(error_of(nccl::torch_device::make({c10::DeviceType::CUDA, 0})).text,
             ContainsSubstring("cuda:0 cannot be used: "));
}

TEST_CASE("tensors that NCCL cannot take are refused") {
  const auto refused = [](action what, const at::Tensor& from, const at::Tensor& to) {
    return error_of(nccl::operation_on(what, from, to, 2), errc::bad_config).text;
  };
  const auto six = at::ones({2, 3});
  CHECK(refused(action::all_reduce, six, at::ones({5})) ==
        "NCCL: 6 elements are given and 5 written, for 2 ranks");
  CHECK(refused(action::reduce_scatter, six, at::ones({6})) ==
        "NCCL: 6 elements are given and 6 written, for 2 ranks");
  CHECK(refused(action::all_gather, six, six) ==
        "NCCL: 6 elements are given and 6 written, for 2 ranks");
  CHECK(refused(action::all_reduce, six.t(), six) ==
        "NCCL: a tensor has gaps; make it contiguous first");
  CHECK(refused(action::all_reduce, six, at::ones({6}, at::kDouble)) ==
        "NCCL: the two tensors of an operation differ in dtype");
  const auto images = at::ones({2, 3, 4, 4});
  CHECK(refused(action::all_reduce, images.contiguous(at::MemoryFormat::ChannelsLast), images) ==
        "NCCL: the two tensors of an operation differ in layout");
  const auto flags = at::ones({6}, at::kBool);
  CHECK(refused(action::all_reduce, flags, flags) == "NCCL: it has no elements of type Bool");
  CHECK(refused(action::send, at::Tensor(), six) ==
        "NCCL: an operation without the tensor that it is of");
}

TEST_CASE("an operation on tensors keeps them") {
  auto tensor = at::ones({4});
  const auto one = nccl::operation_on(action::send, tensor, {}, 2, 1).value();
  CHECK(one.count == 4);
  CHECK(one.from == tensor.const_data_ptr());
  CHECK(one.peer == 1);
  CHECK(tensor.use_count() == 2);
}

}  // namespace
