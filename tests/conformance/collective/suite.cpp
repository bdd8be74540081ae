// What every implementation of the collective port does, and how it fails.

#include <ATen/core/Tensor.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/add.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>

#include <catch2/catch_test_macros.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/collective/tree.hpp"
#include "tests/conformance/collective/group_of_ranks.hpp"
#include "tests/refusal.hpp"

namespace {

using namespace troupe;
using namespace std::chrono_literals;
using engine::collective;
using engine::collective_operation;
using tests::group_of_ranks;
using tests::group_terms;

constexpr auto long_enough = 20s;

/// The outcome of a group.
class outcome {
 public:
  outcome(group_of_ranks& of, std::uint32_t rank, std::vector<collective_operation> group) {
    auto told = std::make_shared<std::promise<result<void>>>();
    future_ = told->get_future().share();
    of[rank].submit(std::move(group), [told](const result<void>& how) { told->set_value(how); });
  }
  [[nodiscard]] result<void> wait() {
    REQUIRE(future_.wait_for(long_enough) == std::future_status::ready);
    return future_.get();
  }
  void succeeds() {
    const auto how = wait();
    if (!how) FAIL(how.error().text);
  }
  [[nodiscard]] bool came() const { return future_.wait_for(0s) == std::future_status::ready; }

 private:
  std::shared_future<result<void>> future_;
};

/// Runs a case against each implementation.
template <class Body>
void with_each(const Body& body) {
  for (const auto& each : tests::all_implementations()) {
    INFO(each.name);
    body(each);
  }
}

/// The same bits, the sign of zero included.
bool same_bits(const at::Tensor& one, const at::Tensor& other) {
  return one.sizes() == other.sizes() && one.scalar_type() == other.scalar_type() &&
         at::equal(one.contiguous().view(at::kByte), other.contiguous().view(at::kByte));
}

at::Tensor tree_of(const std::vector<at::Tensor>& parts) {
  return engine::tree_sum(parts,
                          [](const auto& one, const auto& other) { return at::add(one, other); });
}

std::vector<at::Tensor> numbers(std::uint32_t ranks, std::int64_t elements, at::ScalarType type) {
  std::vector<at::Tensor> all;
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    all.push_back(at::randn({elements}).mul(1 + 1000 * rank).to(type));
  return all;
}

/// All ranks do the same with tensors of their own, given by rank.
template <class Make>
void run_all(group_of_ranks& group, std::uint32_t ranks, const Make& make) {
  std::vector<outcome> ends;
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    ends.emplace_back(group, rank, std::vector<collective_operation>{make(rank)});
  for (auto& each : ends) each.succeeds();
}

void check_sums(group_of_ranks& group, std::uint32_t ranks, const std::vector<at::Tensor>& from) {
  const auto expected = tree_of(from);
  std::vector<at::Tensor> to, in_place;
  for (const auto& each : from) {
    to.push_back(at::empty_like(each));
    in_place.push_back(each.clone());
  }
  run_all(group, ranks, [&](auto rank) {
    return collective_operation{collective::all_reduce, from[rank], to[rank]};
  });
  run_all(group, ranks, [&](auto rank) {
    return collective_operation{collective::all_reduce, in_place[rank], in_place[rank]};
  });
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    CHECK(same_bits(to[rank], expected));
    CHECK(same_bits(in_place[rank], expected));
  }
  for (std::uint32_t root = 0; root < ranks; ++root) {
    const auto sum = at::empty_like(from[root]);
    run_all(group, ranks, [&](auto rank) {
      return collective_operation{collective::reduce, from[rank], rank == root ? sum : at::Tensor(),
                                  root};
    });
    CHECK(same_bits(sum, expected));
  }
}

void check_blocks(group_of_ranks& group, std::uint32_t ranks, std::int64_t elements,
                  at::ScalarType type) {
  const auto wholes = numbers(ranks, elements * ranks, type);
  const auto expected = tree_of(wholes);
  std::vector<at::Tensor> shares, gathered;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    shares.push_back(at::empty({elements}, type));
    gathered.push_back(at::empty({elements * ranks}, type));
  }
  run_all(group, ranks, [&](auto rank) {
    return collective_operation{collective::reduce_scatter, wholes[rank], shares[rank]};
  });
  run_all(group, ranks, [&](auto rank) {
    return collective_operation{collective::all_gather, shares[rank], gathered[rank]};
  });
  for (const auto& each : gathered) CHECK(same_bits(each, expected));
}

void check_broadcasts(group_of_ranks& group, std::uint32_t ranks,
                      const std::vector<at::Tensor>& from) {
  for (std::uint32_t root = 0; root < ranks; ++root) {
    std::vector<at::Tensor> to;
    for (std::uint32_t rank = 0; rank < ranks; ++rank)
      to.push_back(rank == root ? from[root].clone() : at::empty_like(from[rank]));
    run_all(group, ranks, [&](auto rank) {
      return collective_operation{collective::broadcast, rank == root ? to[root] : at::Tensor(),
                                  to[rank], root};
    });
    for (const auto& each : to) CHECK(same_bits(each, from[root]));
  }
}

}  // namespace

TEST_CASE("Sums, blocks and broadcasts have the tree's bits on any number of ranks") {
  with_each([](const auto& each) {
    for (std::uint32_t ranks = 1; ranks <= 4; ++ranks) {
      const auto group = each.make(group_terms{.ranks = ranks, .seed = ranks});
      for (const std::int64_t elements : {1, 2, 3, 4, 12, 40'001})
        for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong}) {
          INFO(ranks << " ranks, " << elements << " elements of " << at::toString(type));
          const auto from = numbers(ranks, elements, type);
          check_sums(*group, ranks, from);
          if (elements > 12) continue;
          check_blocks(*group, ranks, elements, type);
          check_broadcasts(*group, ranks, from);
        }
      CHECK(group->wrong_uses().empty());
    }
  });
}

TEST_CASE("Layouts without gaps, and nothing at all, are summed too") {
  with_each([](const auto& each) {
    const auto group = each.make({});
    std::vector<at::Tensor> images;
    for (int rank = 0; rank < 2; ++rank)
      images.push_back(at::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast));
    check_sums(*group, 2, images);
    check_sums(*group, 2, {at::empty({0}), at::empty({0})});
  });
}

TEST_CASE("The sum of negative zeros keeps its sign, so that they stand for no summand at all") {
  with_each([](const auto& each) {
    const auto group = each.make({});
    const auto nothing = at::full({5}, -0.0);
    check_sums(*group, 2, {nothing, nothing});
    const auto some = at::randn({5});
    const auto to = at::empty({5});
    run_all(*group, 2, [&](auto rank) {
      const auto mine = rank == 0 ? nothing.clone() : some.clone();
      return collective_operation{collective::all_reduce, mine, rank == 0 ? to : mine};
    });
    CHECK(same_bits(to, some));
  });
}

TEST_CASE("The operations of a group progress together, in both directions") {
  with_each([](const auto& each) {
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      const auto group = each.make(group_terms{.ranks = 3, .seed = seed});
      std::vector<std::vector<at::Tensor>> got(3, std::vector<at::Tensor>(3));
      std::vector<at::Tensor> sums;
      std::vector<outcome> ends;
      for (std::uint32_t rank = 0; rank < 3; ++rank) {
        std::vector<collective_operation> all;
        for (std::uint32_t other = 0; other < 3; ++other) {
          if (other == rank) continue;
          got[rank][other] = at::empty({70'000});
          all.push_back({collective::send, at::full({70'000}, 10.0 * rank + other), {}, other});
          all.push_back({collective::receive, {}, got[rank][other], other});
        }
        sums.push_back(at::full({7}, rank + 1.0));
        all.push_back({collective::all_reduce, sums.back(), sums.back()});
        ends.emplace_back(*group, rank, std::move(all));
      }
      for (auto& end : ends) end.succeeds();
      for (std::uint32_t rank = 0; rank < 3; ++rank) {
        CHECK(at::equal(sums[rank], at::full({7}, 6.0)));
        for (std::uint32_t other = 0; other < 3; ++other)
          if (other != rank)
            CHECK(at::equal(got[rank][other], at::full({70'000}, 10.0 * other + rank)));
      }
    }
  });
}

TEST_CASE("Groups run in the order in which they were submitted, however early one rank is") {
  with_each([](const auto& each) {
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      const auto group = each.make(group_terms{.ranks = 2, .seed = seed});
      const auto first = at::ones({3}), second = at::ones({3});
      std::vector<outcome> ends;
      for (int i = 0; i < 20; ++i)
        ends.emplace_back(
            *group, 0, std::vector<collective_operation>{{collective::all_reduce, first, first}});
      CHECK_FALSE(ends.back().came());
      for (int i = 0; i < 20; ++i)
        ends.emplace_back(
            *group, 1, std::vector<collective_operation>{{collective::all_reduce, second, second}});
      for (auto& end : ends) end.succeeds();
      CHECK(at::equal(first, at::full({3}, 1 << 20)));
      CHECK(same_bits(first, second));
    }
  });
}

TEST_CASE("An operation that cannot be is refused with the reason, and the next one is not") {
  with_each([](const auto& each) {
    const auto group = each.make({});
    const auto six = at::ones({6});
    const auto refused = [&](const collective_operation& one) {
      return error_of(outcome(*group, 0, {one}).wait(), errc::bad_config).text;
    };
    CHECK(refused({collective::send, six, {}, 2}) == "send: rank 2 is none of the 2 ranks");
    CHECK(refused({collective::receive, {}, six, 0}) == "receive: a rank sends nothing to itself");
    CHECK(refused({collective::all_reduce, {}, six}) ==
          "all-reduce: it has no tensor to read from");
    CHECK(refused({collective::broadcast, six, {}, 0}) ==
          "broadcast: it has no tensor to write to");
    CHECK(refused({collective::reduce, six, {}, 0}) == "reduce: it has no tensor to write to");
    CHECK(refused({collective::all_gather, six, six}) ==
          "all-gather: 6 elements are given and 6 written, for 2 ranks");
    CHECK(refused({collective::reduce_scatter, six, six}) ==
          "reduce-scatter: 6 elements are given and 6 written, for 2 ranks");
    CHECK(refused({collective::all_reduce, six, at::ones({6}, at::kDouble)}) ==
          "all-reduce: its two tensors differ in dtype");
    CHECK(refused({collective::all_reduce, at::ones({6, 2}).select(1, 0), six}) ==
          "all-reduce: a tensor has gaps; make it contiguous first");
    CHECK(refused({collective::all_reduce, at::_neg_view(six), at::ones({6})}) ==
          "all-reduce: a tensor is a lazy negative; resolve it first");
    check_sums(*group, 2, numbers(2, 9, at::kFloat));
  });
}

TEST_CASE("A lost rank fails what is under way and what comes after, with the first reason") {
  with_each([](const auto& each) {
    const auto group = each.make(group_terms{.ranks = 3});
    check_sums(*group, 3, numbers(3, 9, at::kFloat));
    at::Tensor held = at::ones({4});
    outcome under_way(*group, 0, {{collective::all_reduce, held, held}});  // rank 1 does not come
    outcome queued(*group, 0, {{collective::broadcast, held, held, 0}});
    outcome of_third(*group, 2, {{collective::all_reduce, at::ones({4}), at::ones({4})}});
    group->kill(1);
    const error why{errc::peer_lost, "replica 1 is gone"};
    const auto begin = std::chrono::steady_clock::now();
    for (const std::uint32_t rank : {0U, 2U}) {
      (*group)[rank].lose(why);
      (*group)[rank].lose({errc::cancelled, "a second reason"});
    }
    for (auto* end : {&under_way, &queued, &of_third}) CHECK(error_of(end->wait()) == why);
    CHECK(std::chrono::steady_clock::now() - begin < 1s);
    CHECK(error_of(outcome(*group, 0, {{collective::all_reduce, held, held}}).wait()) == why);
    CHECK(held.use_count() == 1);
    CHECK(group->wrong_uses().empty());
  });
}

TEST_CASE("A rank that dies in the middle of a stream of sums leaves nobody waiting") {
  with_each([](const auto& each) {
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      INFO("seed " << seed);
      const auto group = each.make(group_terms{.ranks = 3, .seed = seed});
      const auto numbers_of = [](std::uint32_t rank) { return at::full({50'000}, rank + 1.0); };
      std::vector<outcome> ends, of_dead;
      for (int i = 0; i < 10; ++i)
        for (std::uint32_t rank = 0; rank < 3; ++rank) {
          const auto value = numbers_of(rank);
          const bool dies = rank == 1;
          if (dies && i > static_cast<int>(seed)) continue;
          (dies ? of_dead : ends)
              .emplace_back(*group, rank,
                            std::vector<collective_operation>{
                                {collective::all_reduce, value, at::empty_like(value)}});
        }
      ends[2 * static_cast<std::size_t>(seed - 1)].succeeds();
      group->kill(1);
      for (const std::uint32_t rank : {0U, 2U})
        (*group)[rank].lose({errc::peer_lost, "replica 1 is gone"});
      bool failed = false;
      for (auto& end : ends) failed |= !end.wait().has_value();
      CHECK(failed);
    }
  });
}

TEST_CASE("What another rank never joins is given up at its deadline") {
  with_each([](const auto& each) {
    const auto group = each.make(group_terms{.deadline = 200ms});
    const auto some = at::ones({4});
    check_refused(outcome(*group, 0, {{collective::all_reduce, some, some}}).wait(),
                  errc::timed_out, "another rank is missing");
    CHECK(error_of(outcome(*group, 0, {{collective::all_reduce, some, some}}).wait()).code ==
          errc::timed_out);
  });
}

TEST_CASE("A port that ends gives up what is under way, and waits for nobody") {
  with_each([](const auto& each) {
    const auto group = each.make({});
    const auto some = at::ones({4});
    outcome under_way(*group, 0, {{collective::all_reduce, some, some}});
    const auto begin = std::chrono::steady_clock::now();
    group->end(0);
    CHECK(std::chrono::steady_clock::now() - begin < 2s);
    CHECK(error_of(under_way.wait()).code == errc::cancelled);
  });
}

TEST_CASE("Sums in the library's own order are close, and the same on all ranks") {
  for (const auto& each : tests::all_implementations()) {
    const auto group = each.make(group_terms{.ranks = 4, .order = engine::sum_order::fast});
    const auto from = numbers(4, 1001, at::kFloat);
    std::vector<at::Tensor> to;
    for (const auto& one : from) to.push_back(one.clone());
    run_all(*group, 4, [&](auto rank) {
      return collective_operation{collective::all_reduce, to[rank], to[rank]};
    });
    CHECK(at::allclose(to[0], tree_of(from), 1e-4, 1e-2));
    for (const auto& one : to) CHECK(same_bits(one, to[0]));
  }
}
