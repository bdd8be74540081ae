// Tensors that stay where they are: what is lent, how it is borrowed and handed back.
#include "messages/link/frames/loans.hpp"

#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "messages/link/frames/bundle.hpp"
#include "messages/link/frames/outbox.hpp"
#include "messages/link/frames/reassembly.hpp"
#include "tests/refusal.hpp"
#include "tests/unit/messages/outgoing_pieces.hpp"
#include "tests/unit/messages/own_view.hpp"

namespace troupe::messages {
namespace {

constexpr std::size_t large = 64 << 10;

std::shared_ptr<descriptor> this_process() {
  return std::make_shared<descriptor>(hold_process(getpid()));
}

/// A memory and the other side's view of it.
struct both_sides {
  std::shared_ptr<shared_memory> memory = shared_memory::make().value();
  lent_tensors lent{memory, this_process()};
  std::vector<std::pair<peer_id, std::uint64_t>> returned;
  lender from{own_view(*memory),
              std::make_shared<return_desk>(
                  [this](peer_id peer, std::uint64_t loan) { returned.emplace_back(peer, loan); }),
              peer_id{7}};
};

/// A tensor of that type in `bytes`, filled with `filling`.
wire_tensor tensor_in(payload bytes, dtype type, int filling) {
  std::fill_n(bytes.data, bytes.bytes, static_cast<std::byte>(filling));
  wire_tensor out;
  const auto elements = static_cast<std::int64_t>(bytes.bytes / item_bytes(type));
  out.descriptor = {type, {elements}, {1}, {}};
  out.bytes = std::move(bytes);
  return out;
}

wire_tensor tensor_elsewhere(std::size_t bytes, dtype type, int filling) {
  const auto owner = std::make_shared<std::vector<std::byte>>(bytes);
  return tensor_in({.data = owner->data(), .bytes = bytes, .owner = owner}, type, filling);
}

bool is_filled(const wire_tensor& tensor, std::size_t bytes, int filling) {
  const std::vector<std::byte> expected(bytes, static_cast<std::byte>(filling));
  return tensor.bytes.bytes == bytes && std::memcmp(tensor.bytes.data, expected.data(), bytes) == 0;
}

std::vector<wire::loan> loans_of(const outgoing& frame) {
  std::vector<wire::loan> out(frame.prefix.loans);
  std::memcpy(out.data(), frame.head.data() + frame.prefix.header_bytes,
              out.size() * sizeof(wire::loan));
  return out;
}

void set_loans(outgoing& frame, const std::vector<wire::loan>& loans) {
  const auto begin = frame.head.begin() + frame.prefix.header_bytes;
  frame.head.erase(begin, begin + frame.prefix.loans * static_cast<long>(sizeof(wire::loan)));
  const auto data = std::as_bytes(std::span(loans));
  frame.head.insert(frame.head.begin() + frame.prefix.header_bytes, data.begin(), data.end());
  frame.prefix.loans = static_cast<std::uint16_t>(loans.size());
}

/// A frame of large tensors, of which some can be lent, and of a small one, each filled with its
/// number.
frame mixed_frame(shared_memory& memory) {
  frame out;
  out.body.push_back({"number", {value{std::int64_t{1}}}});
  const auto add = [&](std::size_t bytes, dtype type, bool here) {
    const int filling = static_cast<int>(out.tensors.size()) + 1;
    out.tensors.push_back(here ? tensor_in(memory.allocate(bytes), type, filling)
                               : tensor_elsewhere(bytes, type, filling));
  };
  add(large, dtype::f32, false);
  add(large, dtype::f32, true);  // lent
  add(large, dtype::i64, true);
  add(64, dtype::f32, true);
  add(large, dtype::bf16, true);  // lent
  add(large, dtype::u8, true);
  add(large, dtype::boolean, true);
  add(large, dtype::f16, true);  // lent
  add(large, dtype::f64, true);  // lent
  return out;
}

/// A frame with two tensors that are lent, and others that are not, for the other side.
struct two_lent {
  two_lent() {
    lend_large(*out, sides.lent);
    loans = loans_of(*out);
    REQUIRE(loans.size() == 2);
    in.borrow_from(sides.from);
  }

  [[nodiscard]] frame message() const {
    frame made;
    made.body.push_back({"number", {value{std::int64_t{1}}}});
    for (int i = 0; i < 2; ++i)
      made.tensors.push_back(tensor_in(sides.memory->allocate(large), dtype::f32, 1));
    made.tensors.push_back(tensor_elsewhere(large, dtype::i32, 1));
    made.tensors.push_back(tensor_elsewhere(64, dtype::f32, 1));
    made.tensors.push_back(tensor_elsewhere(0, dtype::f32, 1));
    return made;
  }

  /// So many loans were taken before that.
  void are_refused(std::size_t taken_before) {
    CHECK(error_of(in.add_head(out->prefix, out->head)).code == errc::bad_frame);
    CHECK_FALSE(in.pop());
    CHECK(sides.returned.size() == taken_before);
  }

  both_sides sides;
  std::shared_ptr<outgoing> out = pieces_of(message());
  std::vector<wire::loan> loans;
  buffer_pool pool{0};
  reassembly in{{}, pool};
  std::uint64_t all = sides.memory->location().bytes;
};

}  // namespace

TEST_CASE("a loan names where the bytes lie and holds them until it ends") {
  both_sides sides;
  payload block = sides.memory->allocate(large);
  const std::weak_ptr<void> held = block.owner;
  const auto offset = sides.memory->offset_of(block);
  const auto loan = sides.lent.lend(3, block, 4);
  REQUIRE(loan);
  CHECK(loan->tensor == 3);
  CHECK(loan->offset == offset);
  CHECK(block.owner == nullptr);  // taken over
  CHECK_FALSE(held.expired());
  CHECK_FALSE(sides.lent.end(loan->number + 1));
  CHECK(sides.lent.end(loan->number));
  CHECK(held.expired());
  CHECK_FALSE(sides.lent.end(loan->number));
}

TEST_CASE("each loan has its own number, also of the same bytes") {
  both_sides sides;
  const payload block = sides.memory->allocate(large);
  payload first = block;
  payload second = block;
  const auto one = sides.lent.lend(0, first, 4);
  const auto two = sides.lent.lend(0, second, 4);
  CHECK(one->offset == two->offset);
  CHECK(one->number != two->number);
}

TEST_CASE("bytes outside the memory or beside their grid are not lent") {
  both_sides sides;
  payload elsewhere = tensor_elsewhere(large, dtype::f32, 1).bytes;
  CHECK_FALSE(sides.lent.lend(0, elsewhere, 4));
  CHECK(elsewhere.owner != nullptr);
  const payload block = sides.memory->allocate(large);
  payload beside{.data = block.data + 2, .bytes = large - 4, .owner = block.owner};
  CHECK_FALSE(sides.lent.lend(0, beside, 4));
  CHECK(sides.lent.lend(0, beside, 2));
}

TEST_CASE("what is still lent at the end of a connection stays with the memory") {
  both_sides sides;
  payload open = sides.memory->allocate(large);
  payload over = sides.memory->allocate(large);
  const std::weak_ptr<void> held = open.owner;
  const std::weak_ptr<void> gone = over.owner;
  {
    lent_tensors lent(sides.memory, this_process());
    REQUIRE(lent.lend(0, open, 4));
    REQUIRE(lent.end(lent.lend(1, over, 4)->number));
  }
  CHECK(sides.memory->allocate(1).data != nullptr);  // looks for who has ended
  CHECK_FALSE(held.expired());
  CHECK(gone.expired());
}

TEST_CASE("borrowed bytes are the lender's and are handed back with their last owner") {
  both_sides sides;
  payload block = sides.memory->allocate(large);
  std::memset(block.data, 9, large);
  const wire::loan loan = sides.lent.lend(0, block, 4).value();
  payload got = sides.from.borrow(loan, large, 4).value();
  CHECK(got.read_only);
  CHECK(got.bytes == large);
  CHECK(got.data[large - 1] == std::byte{9});
  payload copy = got;
  got = {};
  CHECK(sides.returned.empty());
  copy = {};
  REQUIRE(sides.returned.size() == 1);
  CHECK(sides.returned.front() == std::pair{peer_id{7}, loan.number});
}

TEST_CASE("loans outside the lender's memory are not borrowed") {
  both_sides sides;
  const std::uint64_t all = sides.memory->location().bytes;
  constexpr auto most = std::numeric_limits<std::uint64_t>::max();
  const auto borrows = [&](std::uint64_t offset, std::uint64_t bytes, std::size_t item) {
    const auto got = sides.from.borrow({.number = 1, .offset = offset}, bytes, item);
    if (!got) CHECK(got.error().code == errc::bad_frame);
    return got.has_value();
  };
  CHECK(borrows(all - 8, 8, 4));
  CHECK(borrows(0, all, 4));
  CHECK_FALSE(borrows(all - 8, 9, 1));
  CHECK_FALSE(borrows(all, 1, 1));
  CHECK_FALSE(borrows(0, all + 1, 1));
  CHECK_FALSE(borrows(most - 3, 4, 4));  // the sum is 0
  CHECK_FALSE(borrows(most, 2, 1));
  CHECK_FALSE(borrows(4, most, 1));
  CHECK_FALSE(borrows(2, 8, 4));
  CHECK(borrows(2, 8, 2));
  CHECK(sides.returned.size() == 3);  // what was not borrowed is not handed back
}

TEST_CASE("a desk that is closed takes nothing back, and lending goes on safely") {
  both_sides sides;
  payload block = sides.memory->allocate(large);
  const wire::loan loan = sides.lent.lend(0, block, 4).value();
  payload got = sides.from.borrow(loan, large, 4).value();
  sides.from.desk->close();
  sides.from = {};
  CHECK(got.data[0] == std::byte{0});  // still mapped
  got = {};
  CHECK(sides.returned.empty());
}

TEST_CASE("of a frame, the large floating-point tensors in the memory are lent") {
  both_sides sides;
  const auto out = pieces_of(mixed_frame(*sides.memory));
  const wire::frame_prefix before = out->prefix;
  const std::uint64_t all_bytes = out->all_bytes;
  const std::size_t head_bytes = out->head.size();
  lend_large(*out, sides.lent);

  CHECK(out->prefix.loans == 4);
  CHECK(out->lent_bytes == 4 * large);
  CHECK(out->all_bytes == all_bytes);
  CHECK(out->prefix.header_bytes == before.header_bytes);
  CHECK(out->prefix.inline_bytes == before.inline_bytes);
  CHECK(out->head.size() == head_bytes + 4 * sizeof(wire::loan));
  std::vector<std::uint32_t> lent;
  for (const wire::loan& loan : loans_of(*out)) lent.push_back(loan.tensor);
  CHECK(lent == std::vector<std::uint32_t>{1, 4, 7, 8});
  std::vector<std::uint32_t> copied;
  for (const auto& tensor : out->large) copied.push_back(tensor.index);
  CHECK(copied == std::vector<std::uint32_t>{0, 2, 5, 6});
  CHECK(out->head.back() == std::byte{4});  // the small tensor is still behind it all
}

TEST_CASE("a frame of which some tensors are lent is put together again") {
  both_sides sides;
  const auto out = pieces_of(mixed_frame(*sides.memory));
  lend_large(*out, sides.lent);
  buffer_pool pool(0);
  reassembly in({}, pool);
  in.borrow_from(sides.from);
  outbox wire(std::uint64_t{1} << 40);
  wire.push(out);
  while (const auto piece = wire.next()) {
    if (piece->head) {
      REQUIRE(in.add_head(piece->frame->prefix, {piece->data, piece->bytes}));
      continue;
    }
    const auto announced = in.announce(piece->chunk, piece->bytes).value();
    std::memcpy(std::get<reassembly::destination>(announced).data, piece->data, piece->bytes);
    in.done(piece->chunk);
  }
  auto got = in.pop();
  REQUIRE(got);
  REQUIRE(got->tensors.size() == 9);
  for (std::size_t i = 0; i < 9; ++i) {
    CAPTURE(i);
    CHECK(is_filled(got->tensors[i], i == 3 ? 64 : large, static_cast<int>(i) + 1));
    CHECK(got->tensors[i].bytes.read_only == (i == 1 || i == 4 || i == 7 || i == 8));
  }
  got.reset();
  CHECK(sides.returned.size() == 4);
}

TEST_CASE("a frame whose tensors are all lent is whole with its head, and goes alone") {
  both_sides sides;
  frame message;
  message.tensors.push_back(tensor_in(sides.memory->allocate(large), dtype::f32, 1));
  const auto out = pieces_of(std::move(message));
  lend_large(*out, sides.lent);
  outbox wire(1);
  wire.push(out);
  const auto piece = wire.next().value();
  CHECK_FALSE(bundle{}.takes(piece));  // an entry of a bundle has no loans
  CHECK_FALSE(wire.next());
  CHECK(wire.completed(piece) == out);
}

TEST_CASE("loans of what is not lent, or lies elsewhere, are refused") {
  two_lent of;
  SECTION("of a tensor that is none") of.loans[1].tensor = 5;
  SECTION("of a tensor far beyond") of.loans[1].tensor = ~std::uint32_t{0};
  SECTION("of indices") of.loans[1].tensor = 2;
  SECTION("of a tensor that came with the head") of.loans[1].tensor = 3;
  SECTION("of no bytes") of.loans[1].tensor = 4;
  SECTION("of the same tensor twice") of.loans[1].tensor = of.loans[0].tensor;
  SECTION("outside the memory") of.loans[1].offset = of.all;
  SECTION("past the memory's end") of.loans[1].offset = of.all - large + 4;
  SECTION("beside the grid") of.loans[1].offset += 2;
  set_loans(*of.out, of.loans);
  of.are_refused(1);  // the first was good, and is handed back
}

TEST_CASE("loans that are not as many as came, or without a memory, are refused") {
  two_lent of;
  SECTION("of memory that is not open here") of.in.borrow_no_more();
  SECTION("more than came") of.out->prefix.loans += 1;
  SECTION("as many as can be, of which none came") {
    of.out->prefix.loans = std::numeric_limits<std::uint16_t>::max();
  }
  SECTION("fewer than came") of.out->prefix.loans -= 1;
  SECTION("cut short") of.out->head.pop_back();
  of.are_refused(0);
}

TEST_CASE("a frame with loans that comes again borrows nothing again") {
  both_sides sides;
  frame message;
  message.tensors.push_back(tensor_in(sides.memory->allocate(large), dtype::f32, 1));
  const auto out = pieces_of(std::move(message));
  lend_large(*out, sides.lent);
  buffer_pool pool(0);
  reassembly in({}, pool);
  in.borrow_from(sides.from);
  out->prefix.sequence = 1;  // it waits for another
  REQUIRE(in.add_head(out->prefix, out->head));
  CHECK(in.add_head(out->prefix, out->head).error().code == errc::stale);
  CHECK(sides.returned.empty());
}

}  // namespace troupe::messages
