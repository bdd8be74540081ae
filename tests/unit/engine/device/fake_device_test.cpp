// The devices of tests find what a GPU would do wrong without a word, and count right.

#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/autograd.h>
#include <unistd.h>

#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cerrno>
#include <functional>
#include <vector>

#include "engine/operators/convolution.hpp"
#include "tests/fake_device/fake_device.hpp"

namespace {

namespace fake = troupe::tests::fake_device;
using Catch::Matchers::ContainsSubstring;

/// A device with two streams, and what it finds from here on.
struct two_streams {
  two_streams() {
    fake::install();
    one = streams.getStreamFromGlobalPool(on);
    two = streams.getStreamFromGlobalPool(on);
    fake::reset();
  }
  static const c10::impl::VirtualGuardImpl streams;

  const c10::Device on = fake::device(0);
  c10::Stream one{c10::Stream::DEFAULT, c10::Device(c10::kCPU)};
  c10::Stream two{c10::Stream::DEFAULT, c10::Device(c10::kCPU)};
};

struct installed {
  installed() { fake::install(); }
} const before_guards;
const c10::impl::VirtualGuardImpl two_streams::streams{c10::DeviceType::PrivateUse1};

/// An operator on stream two reads what one on stream one writes.
void pass_on(const two_streams& between, bool with_event, bool with_record) {
  at::Tensor made, used;
  c10::Event ready(between.on.type());
  {
    const c10::StreamGuard guard(between.one);
    made = at::ones({4, 4}, between.on);
    ready.record(between.one);
  }
  {
    const c10::StreamGuard guard(between.two);
    if (with_event) ready.block(between.two);
    if (with_record) made.record_stream(between.two);
    used = at::mm(made, made);
  }
  made.reset();
}

}  // namespace

TEST_CASE("What streams do without an event between them is a race, with both operators' names") {
  const two_streams between;
  pass_on(between, false, true);
  const auto races = fake::seen().races;
  REQUIRE(races.size() == 1);
  CHECK_THAT(races.front(), ContainsSubstring("mm") && ContainsSubstring("reads what aten::fill_"));
  CHECK_THAT(races.front(), ContainsSubstring("fake:0 stream"));
}

TEST_CASE("What an event orders is no race") {
  const two_streams between;
  pass_on(between, true, true);
  CHECK(fake::seen().races.empty());
  CHECK(fake::seen().events == 1);
  CHECK(fake::seen().synchronisations.empty());
  CHECK(fake::seen().event_waits == 0);
}

TEST_CASE("Memory that goes back while another stream may use it is a race") {
  const two_streams between;
  pass_on(between, true, false);
  const auto races = fake::seen().races;
  REQUIRE(races.size() == 1);
  CHECK_THAT(races.front(), ContainsSubstring("is freed while") && ContainsSubstring("mm"));
}

TEST_CASE("A write over what another stream may still read is a race") {
  const two_streams between;
  at::Tensor made;
  {
    const c10::StreamGuard guard(between.one);
    made = at::ones({4}, between.on);
  }
  c10::Event ready(between.on.type());
  ready.record(between.one);
  {
    const c10::StreamGuard guard(between.two);
    ready.block(between.two);
    made.record_stream(between.two);
    static_cast<void>(at::add(made, 1));
  }
  const c10::StreamGuard guard(between.one);
  made.zero_();
  REQUIRE(fake::seen().races.size() == 1);
  CHECK_THAT(fake::seen().races.front(), ContainsSubstring("writes what aten::add"));
}

TEST_CASE("A stream that the host has waited for is ordered, and the wait is counted") {
  const two_streams between;
  at::Tensor made;
  {
    const c10::StreamGuard guard(between.one);
    made = at::ones({4}, between.on);
  }
  between.one.synchronize();
  const c10::StreamGuard guard(between.two);
  made.record_stream(between.two);
  static_cast<void>(at::add(made, 1));
  CHECK(fake::seen().races.empty());
  CHECK(fake::seen().synchronisations.size() == 1);
}

TEST_CASE("Copies that hold up the host, and looks at single numbers, are counted") {
  const two_streams between;
  const auto made = at::ones({4}, between.on);
  CHECK(fake::seen().synchronisations.empty());
  static_cast<void>(made.cpu());
  static_cast<void>(made.sum().item<float>());
  static_cast<void>(at::ones({4}).to(between.on));
  const auto waits = fake::seen().synchronisations;
  REQUIRE(waits.size() == 3);
  CHECK_THAT(waits[0], ContainsSubstring("to the host"));
  CHECK_THAT(waits[1], ContainsSubstring("item"));
  CHECK_THAT(waits[2], ContainsSubstring("from the host"));
  fake::reset();
  static_cast<void>(at::ones({4}).to(between.on, /*non_blocking=*/true));
  CHECK(fake::seen().synchronisations.empty());
  at::empty({4}).copy_(made, /*non_blocking=*/true);  // not to pinned memory
  CHECK(fake::seen().synchronisations.size() == 1);
}

TEST_CASE("What is on its way to the host is not there before an event, and a look at it is seen") {
  const two_streams between;
  const auto made = at::ones({4}, between.on);
  const auto here = at::empty({4}, at::TensorOptions().pinned_memory(true));
  c10::Event there(between.on.type());
  here.copy_(made, /*non_blocking=*/true);
  there.record(two_streams::streams.getStream(between.on));
  CHECK(std::isnan(here.const_data_ptr<float>()[0]));
  static_cast<void>(at::add(here, 1));
  const auto early = fake::seen().host_reads;
  REQUIRE(!early.empty());
  CHECK_THAT(early.front(),
             ContainsSubstring("aten::add on the host reads what a copy to the host on fake:0"));
  there.synchronize();
  CHECK(at::equal(here, at::ones({4})));
  CHECK(fake::seen().host_reads == early);
  CHECK(fake::seen().event_waits == 1);
  CHECK(fake::seen().synchronisations.empty());
}

TEST_CASE("The host cannot read a device's memory") {
  const two_streams between;
  const auto made = at::ones({4}, between.on);
  std::array<int, 2> ends{};
  REQUIRE(pipe(ends.data()) == 0);
  // The system refuses to read there for us, where we would end with SIGSEGV.
  CHECK(write(ends[1], made.const_data_ptr(), 4) == -1);
  CHECK(errno == EFAULT);
  close(ends[0]);
  close(ends[1]);
  CHECK(at::equal(fake::peek(made), at::ones({4})));
}

TEST_CASE("Operators on a device give the CPU's bits and running statistics") {
  const two_streams between;
  const auto images = at::rand({3, 4, 9, 9}), kernels = at::rand({6, 4, 3, 3});
  const auto weight = at::rand({6}), bias = at::rand({6});
  const auto run = [&](const c10::Device& where) {
    const auto x = images.to(where).requires_grad_(), w = kernels.to(where).requires_grad_();
    const auto mean = at::zeros({6}, where), variance = at::ones({6}, where);
    const auto made = troupe::engine::convolve(x, w, {.stride = 2, .padding = 1});
    const auto norm = at::batch_norm(made, weight.to(where), bias.to(where), mean, variance, true,
                                     0.1, 1e-5, true);
    const auto out = at::layer_norm(norm.flatten(1), {150}).relu();
    auto all = torch::autograd::grad({out.sum()}, {x, w});
    all.insert(all.end(), {out, mean, variance});
    return all;
  };
  const auto here = run(at::kCPU), there = run(between.on);
  for (std::size_t i = 0; i < here.size(); ++i) {
    INFO("tensor " << i);
    CHECK(there[i].device() == between.on);
    CHECK(there[i].strides() == here[i].strides());
    CHECK(at::equal(fake::peek(there[i]), here[i].detach()));
  }
  CHECK(fake::seen().races.empty());
  CHECK(fake::seen().overruns == 0);
}

TEST_CASE("A device is full when its memory is") {
  const two_streams between;
  const auto before = fake::bytes_in_use(0);
  fake::limit_memory(0, before + 4096);
  const auto half = at::empty({512}, between.on);
  CHECK(fake::bytes_in_use(0) == before + 2048);
  CHECK_THROWS_AS(at::empty({1024}, between.on), c10::OutOfMemoryError);
  fake::limit_memory(0, 0);
}
