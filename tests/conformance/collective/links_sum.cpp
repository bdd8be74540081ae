// The sum over links is no port (docs/replicas.md says why), but its bits are a port's: its core on
// a network that a seed invents, with tensors.

#include <ATen/ops/add.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>

#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <variant>
#include <vector>

#include "engine/collective/all_reduce_core.hpp"
#include "engine/collective/tree.hpp"

namespace {

using namespace troupe;

using tensors = std::vector<at::Tensor>;
const engine::step_key step{epoch_id{0}, step_id{1}};

at::Tensor sum_of_two(const at::Tensor& one, const at::Tensor& other) {
  return at::add(one, other);
}

tensors add_lists(const tensors& one, const tensors& other) {
  tensors sums;
  for (std::size_t i = 0; i < one.size(); ++i) sums.push_back(sum_of_two(one[i], other[i]));
  return sums;
}

/// The stages' part of a sum, without the stages.
class world {
 public:
  world(std::uint32_t ranks, const std::vector<tensors>& parts, std::uint64_t seed)
      : draw_(seed), values_(parts), parts_(ranks), ended_(ranks) {
    std::vector<std::uint64_t> bytes;
    for (const auto& each : parts.front()) bytes.push_back(each.nbytes());
    const auto buckets = engine::make_buckets(bytes, engine::owners_of(bytes, ranks), 64);
    for (std::uint32_t rank = 0; rank < ranks; ++rank)
      cores_.emplace_back(rank, ranks, buckets, 96);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) follow(rank, cores_[rank].complete(step));
  }

  /// What all ranks have in the end.
  const std::vector<tensors>& run() {
    while (!under_way_.empty()) {
      const auto which =
          std::uniform_int_distribution<std::size_t>(0, under_way_.size() - 1)(draw_);
      auto one = std::move(under_way_[which]);
      under_way_.erase(under_way_.begin() + static_cast<std::ptrdiff_t>(which));
      arrive(one);
    }
    for (const auto each : ended_) CHECK(each);
    return values_;
  }

 private:
  enum class kind : std::uint8_t { part, sum, rest };
  struct message {
    kind what;
    std::uint32_t from, to;
    std::size_t bucket;
    tensors data;
  };

  tensors own(std::uint32_t rank, std::size_t bucket) const {
    tensors all;
    for (const auto i : cores_[rank].buckets()[bucket].parameters) all.push_back(values_[rank][i]);
    return all;
  }
  void put(std::uint32_t rank, std::size_t bucket, const tensors& sums) {
    const auto& which = cores_[rank].buckets()[bucket].parameters;
    for (std::size_t i = 0; i < which.size(); ++i) values_[rank][which[i]] = sums[i];
  }
  void to_others(kind what, std::uint32_t from, std::size_t bucket, const tensors& data) {
    for (std::uint32_t to = 0; to < cores_.size(); ++to)
      if (to != from) under_way_.push_back({what, from, to, bucket, data});
  }

  void arrive(const message& one) {
    auto& core = cores_[one.to];
    if (one.what == kind::rest) return follow(one.to, core.rest_arrived(step, one.from));
    if (one.what == kind::part) {
      parts_[one.to][one.bucket][one.from] = one.data;
      return follow(one.to, core.part_arrived(step, one.bucket, one.from));
    }
    const auto effects = core.sum_arrived(step, one.bucket, one.from);
    put(one.to, one.bucket, one.data);
    follow(one.to, effects);
  }

  void follow(std::uint32_t rank, const result<engine::all_reduce_effects>& effects) {
    REQUIRE(effects);
    for (const auto& each : *effects) {
      if (const auto* send = std::get_if<engine::send_part>(&each))
        under_way_.push_back({kind::part, rank, cores_[rank].buckets()[send->bucket].owner,
                              send->bucket, own(rank, send->bucket)});
      if (const auto* sum = std::get_if<engine::send_sum>(&each))
        to_others(kind::sum, rank, sum->bucket, own(rank, sum->bucket));
      if (std::holds_alternative<engine::send_rest>(each)) to_others(kind::rest, rank, 0, {});
      if (std::holds_alternative<engine::all_reduced>(each)) ended_[rank] = true;
      if (const auto* due = std::get_if<engine::add_parts>(&each)) {
        auto& parts = parts_[rank][due->bucket];
        parts[rank] = own(rank, due->bucket);
        std::vector<tensors> in_order;
        for (auto& [from, part] : parts) in_order.push_back(std::move(part));
        put(rank, due->bucket, engine::tree_sum(std::move(in_order), add_lists));
        follow(rank, cores_[rank].own_added(step, due->bucket));
      }
    }
  }

  std::mt19937_64 draw_;
  std::vector<engine::all_reduce_core> cores_;
  std::vector<tensors> values_;  // by rank: its parts, then the sums
  std::vector<std::map<std::size_t, std::map<std::uint32_t, tensors>>> parts_;
  std::vector<message> under_way_;
  std::vector<bool> ended_;
};

}  // namespace

TEST_CASE("The sum over links has the tree's bits too, whatever overtakes what") {
  for (std::uint32_t ranks = 2; ranks <= 5; ++ranks)
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
      INFO(ranks << " ranks, seed " << seed);
      std::vector<tensors> parts(ranks);
      for (auto& each : parts)
        for (const std::int64_t size : {30, 1, 7, 12, 3, 25}) each.push_back(at::randn({size}));
      const auto sums = world(ranks, parts, seed).run();
      for (std::size_t i = 0; i < parts.front().size(); ++i) {
        std::vector<at::Tensor> of_all;
        for (const auto& each : parts) of_all.push_back(each[i]);
        const auto expected = engine::tree_sum(of_all, sum_of_two);
        for (const auto& each : sums) CHECK(at::equal(each[i], expected));
      }
    }
}
