#include "actors/wire/lendable.hpp"

#include <ATen/ops/_neg_view.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <c10/core/CPUAllocator.h>

#include <catch2/catch_test_macros.hpp>
#include <memory>
#include <stdexcept>
#include <thread>

#include "actors/protocol.hpp"
#include "actors/wire/fields.hpp"
#include "actors/wire/message_registry.hpp"
#include "actors/wire/tensors.hpp"
#include "tests/unit/actors/no_directory.hpp"

namespace troupe::tests {

struct may_write {
  at::Tensor tensor;

  static void fields(auto& self, auto& f) { f(self.tensor); }
};

struct only_reads {
  static constexpr bool tensors_are_only_read = true;
  std::optional<at::Tensor> tensor;  // not at the top level, for that is another way

  static void fields(auto& self, auto& f) { f(self.tensor); }
};

}  // namespace troupe::tests

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::tests::may_write)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::tests::only_reads)

namespace {

using namespace troupe;
using namespace troupe::actors;
using tests::no_directory;

constexpr std::int64_t large = least_lendable / sizeof(float);

std::shared_ptr<messages::shared_memory> make_memory() {
  return messages::shared_memory::make().value();
}

bool lies_in(const messages::shared_memory& memory, const at::Tensor& tensor) {
  return memory.offset_of(to_wire(tensor).bytes).has_value();
}

/// The message as its receiver gets it when its tensor is lent.
template <class Message>
Message travel(const Message& message) {
  message_registry types;
  types.add<Message>("message");
  no_directory nobody;
  messages::frame frame;
  REQUIRE(types.encode(caf::make_message(message), frame, nobody));
  frame.tensors.front().bytes.read_only = true;
  const auto arrived = types.decode(frame, nobody);
  REQUIRE(arrived);
  return arrived->template get_as<Message>(0);
}

}  // namespace

TEST_CASE("large tensors that are made in the scope lie in the memory, and no others") {
  const auto memory = make_memory();
  const auto before = at::full({large}, 1.0);
  at::Tensor inside, small, elsewhere, nested;
  {
    const lendable_tensors lendable(memory);
    inside = at::full({large}, 2.0);
    small = at::full({large - 1}, 3.0);
    std::thread([&] { elsewhere = at::full({large}, 4.0); }).join();
    const lendable_tensors none(nullptr);
    nested = at::full({large}, 5.0);
  }
  const auto after = inside.clone();
  CHECK(lies_in(*memory, inside));
  CHECK(lies_in(*memory, inside.narrow(0, 10, 20)));
  for (const auto& each : {before, small, elsewhere, nested, after}) CHECK(!lies_in(*memory, each));
  CHECK(at::equal(after, at::full({large}, 2.0)));
  CHECK(at::equal(nested, at::full({large}, 5.0)));
}

TEST_CASE("a lent tensor's memory serves again when its last owner lets go") {
  const auto memory = make_memory();
  const lendable_tensors lendable(memory);
  auto first = at::empty({large});
  const auto* const where = first.const_data_ptr();
  auto view = first.narrow(0, 0, 1);
  first.reset();
  CHECK(at::empty({large}).const_data_ptr() != where);
  std::thread([&] { view.reset(); }).join();
  CHECK(at::empty({large}).const_data_ptr() == where);
}

TEST_CASE("a tensor that finds no room lies where it always did") {
  const auto memory = make_memory();
  const lendable_tensors lendable(memory);
  const auto bytes = static_cast<std::int64_t>(memory->location().bytes);
  const auto hog = memory->allocate(static_cast<std::size_t>(bytes - 2 * 1024 * 1024));
  REQUIRE(hog.data != nullptr);  // not touched: address space only
  const auto fits = at::full({large}, 1.0);
  const auto too_large = at::full({1024 * 1024}, 2.0);
  CHECK(lies_in(*memory, fits));
  CHECK(!lies_in(*memory, too_large));
  CHECK(at::equal(too_large, at::full({1024 * 1024}, 2.0)));
}

TEST_CASE("what LibTorch allocates and frees by its address is freed, in the scope and outside") {
  const auto memory = make_memory();
  void* inside = nullptr;
  void* outside = c10::GetCPUAllocator()->raw_allocate(least_lendable);
  {
    const lendable_tensors lendable(memory);
    inside = c10::GetCPUAllocator()->raw_allocate(least_lendable);
    c10::GetCPUAllocator()->raw_deallocate(outside);
    outside = c10::GetCPUAllocator()->raw_allocate(least_lendable - 1);
  }
  CHECK(inside != memory->allocate(1).data);
  c10::GetCPUAllocator()->raw_deallocate(inside);
  c10::GetCPUAllocator()->raw_deallocate(outside);
  CHECK(inside == memory->allocate(least_lendable).data);
}

TEST_CASE("a tensor outlives the memory's other owners") {
  auto memory = make_memory();
  at::Tensor tensor;
  {
    const lendable_tensors lendable(memory);
    tensor = at::full({large}, 7.0);
  }
  memory.reset();
  CHECK(at::equal(tensor, at::full({large}, 7.0)));
}

TEST_CASE("a lent tensor is copied, unless its message says that nobody writes") {
  const auto tensor = at::randn({30, 50}).t();  // strides are kept
  const auto written = travel(tests::may_write{tensor}).tensor;
  CHECK(at::equal(written, tensor));
  CHECK(written.strides() == tensor.strides());
  CHECK(!written.is_alias_of(tensor));
  CHECK(written.const_data_ptr() != tensor.const_data_ptr());
  CHECK(travel(tests::only_reads{tensor}).tensor->const_data_ptr() == tensor.const_data_ptr());
}

TEST_CASE("A tensor is sent from the device where it lies, or not at all") {
  const auto sent = to_wire(at::ones({2, 3}));
  CHECK(sent.bytes.device == messages::device_ref{});
  CHECK(from_wire(sent, lent::kept).device() == at::Device(at::kCPU));
  CHECK_THROWS_AS(to_wire(at::empty({2, 3}, at::kMeta)), std::invalid_argument);
}

TEST_CASE("A lazy negative is sent with its sign") {
  const auto tensor = at::randn({30, 50});
  for (const auto& each : {tensor, tensor.t(), tensor.narrow(1, 3, 20)}) {
    const auto lazy = at::_neg_view(each);
    REQUIRE(lazy.is_neg());
    CHECK(at::equal(*travel(tests::only_reads{lazy}).tensor, each.neg()));
  }
}
