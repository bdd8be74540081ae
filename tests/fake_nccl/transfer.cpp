#include "tests/fake_nccl/transfer.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "tests/fake_nccl/reduce.hpp"

namespace troupe::tests::fake_nccl {
namespace {

using function = arguments::function;

call_shape shape_of(const arguments& of) {
  // A send and its receive are the same to both.
  const function what = of.what == function::receive ? function::send : of.what;
  return {.function = static_cast<std::uint32_t>(what),
          .type = static_cast<std::uint32_t>(of.type),
          .by = static_cast<std::uint32_t>(of.by),
          .count = of.count};
}

bool put(box& into, const call_shape& shape, const std::byte* data, std::size_t bytes) {
  if (into.full.load(std::memory_order_acquire) != 0) return false;
  if (bytes != 0) std::memcpy(into.data.data(), data, bytes);
  into.bytes = static_cast<std::uint32_t>(bytes);
  into.shape = shape;
  into.full.store(1, std::memory_order_release);
  return true;
}

bool take(box& from, const call_shape& shape, std::byte* data, std::size_t bytes) {
  if (from.full.load(std::memory_order_acquire) == 0) return false;
  if (from.shape != shape || from.bytes != bytes)
    throw std::runtime_error("the ranks do not call the same");
  if (bytes != 0) std::memcpy(data, from.data.data(), bytes);
  from.full.store(0, std::memory_order_release);
  return true;
}

/// A send or a receive, piece by piece; nothing at all goes as one empty piece.
class one_way final : public transfer {
 public:
  one_way(world& in, const arguments& of)
      : world_(in), of_(of), bytes_(of.count * engine::nccl::width(of.type)), shape_(shape_of(of)) {
    lane = (of.what == function::send ? "to " : "from ") + std::to_string(of.peer);
  }
  void step() override {
    while (!over() && move(std::min(piece_bytes, bytes_ - at_))) begun_ = true;
  }
  [[nodiscard]] bool over() const override { return begun_ && at_ == bytes_; }
  [[nodiscard]] bool begun() const override { return begun_; }

 private:
  bool move(std::size_t bytes) {
    const bool moved = of_.what == function::send
                           ? put(world_.from_to(true, world_.rank, of_.peer), shape_,
                                 static_cast<const std::byte*>(of_.from) + at_, bytes)
                           : take(world_.from_to(true, of_.peer, world_.rank), shape_,
                                  static_cast<std::byte*>(of_.to) + at_, bytes);
    if (moved) at_ += bytes;
    return moved;
  }

  world& world_;
  const arguments of_;
  const std::size_t bytes_;
  const call_shape shape_;
  std::size_t at_ = 0;
  bool begun_ = false;
};

/// A collective: in each round every rank gives every other a piece, and combines what it got in
/// the order of the ranks, so that all have the same bits.
class exchange final : public transfer {
 public:
  exchange(world& in, const arguments& of)
      : world_(in),
        of_(of),
        bytes_(of.count * engine::nccl::width(of.type)),
        shape_(shape_of(of)),
        parts_(static_cast<std::size_t>(in.ranks)) {
    lane = "collective";
  }

  void step() override {
    // Memory is read when the stream gets here, not when the operation is called.
    if (!std::exchange(started_, true)) begin_round();
    while (!over()) {
      for (int other = 0; other < world_.ranks; ++other) serve(other);
      if (!std::ranges::all_of(parts_, [](const part& each) { return each.sent && each.got; }))
        return;
      combine();
      at_ += round_;
      ended_ = at_ == bytes_;
      begin_round();
    }
  }
  [[nodiscard]] bool over() const override { return ended_; }
  [[nodiscard]] bool begun() const override { return at_ != 0 || ended_; }

 private:
  struct part {
    bool sent = false;
    bool got = false;
    std::vector<std::byte> data;
  };

  /// Where this rank's piece for another lies.
  [[nodiscard]] const std::byte* source(int other) const {
    const auto* const from = static_cast<const std::byte*>(of_.from);
    return (of_.what == function::reduce_scatter ? from + static_cast<std::size_t>(other) * bytes_
                                                 : from) +
           at_;
  }
  [[nodiscard]] bool gives(int rank) const {
    return of_.what != function::broadcast || rank == of_.peer;
  }

  void begin_round() {
    round_ = std::min(piece_bytes, bytes_ - at_);
    for (int other = 0; other < world_.ranks; ++other) {
      part& each = parts_[static_cast<std::size_t>(other)];
      const bool own = other == world_.rank;
      each.sent = own || !gives(world_.rank);
      each.got = own || !gives(other);
      each.data.resize(round_);
      if (own && gives(other) && round_ != 0) std::memcpy(each.data.data(), source(other), round_);
    }
  }

  void serve(int other) {
    part& each = parts_[static_cast<std::size_t>(other)];
    if (!each.sent)
      each.sent = put(world_.from_to(false, world_.rank, other), shape_, source(other), round_);
    if (!each.got)
      each.got = take(world_.from_to(false, other, world_.rank), shape_, each.data.data(), round_);
  }

  void combine() {
    auto* const to = static_cast<std::byte*>(of_.to);
    if (round_ == 0) return;
    if (of_.what == function::broadcast) {
      std::memcpy(to + at_, parts_[static_cast<std::size_t>(of_.peer)].data.data(), round_);
    } else if (of_.what == function::all_gather) {
      for (std::size_t other = 0; other < parts_.size(); ++other)
        std::memcpy(to + other * bytes_ + at_, parts_[other].data.data(), round_);
    } else {
      std::vector<const std::byte*> all;
      for (const part& each : parts_) all.push_back(each.data.data());
      reduce(of_.type, of_.by, all, to + at_, round_ / engine::nccl::width(of_.type));
    }
  }

  world& world_;
  const arguments of_;
  const std::size_t bytes_;  // of a rank's own block
  const call_shape shape_;
  std::vector<part> parts_;
  std::size_t at_ = 0;
  std::size_t round_ = 0;
  bool started_ = false;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<transfer> make_transfer(world& in, const arguments& of) {
  if (of.what == function::send || of.what == function::receive)
    return std::make_unique<one_way>(in, of);
  const bool reduces = of.what == function::all_reduce || of.what == function::reduce_scatter;
  if (reduces && !can_reduce(of.type)) return nullptr;
  return std::make_unique<exchange>(in, of);
}

}  // namespace troupe::tests::fake_nccl
