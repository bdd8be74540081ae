#include "tests/multiprocess/nccl/conformance.hpp"

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <utility>

#include "tests/fake_nccl/reduce.hpp"

namespace troupe::tests {
namespace {

namespace nccl = engine::nccl;
using nccl::action;
using nccl::data_type;
using nccl::reduction;

template <class Element>
constexpr data_type type_of();
template <>
constexpr data_type type_of<float>() {
  return data_type::float32;
}
template <>
constexpr data_type type_of<double>() {
  return data_type::float64;
}
template <>
constexpr data_type type_of<std::int64_t>() {
  return data_type::int64;
}
template <>
constexpr data_type type_of<std::uint8_t>() {
  return data_type::uint8;
}

/// One rank's view of one type: what each rank gives is small and whole, so that every sum is
/// exact.
template <class Element>
class checks {
 public:
  checks(nccl::communicator& on, int rank, int ranks, std::vector<std::string>& wrong)
      : on_(on), rank_(rank), ranks_(ranks), wrong_(wrong) {}

  void run(std::size_t count) {
    all_reduce(count, reduction::sum);
    all_reduce(count, reduction::maximum);
    all_reduce(count, reduction::minimum);
    in_place(count);
    reduce_scatter(count);
    all_gather(count);
    for (int root = 0; root < ranks_; ++root) broadcast(count, root);
    ring(count);
    everybody_to_everybody(count);
    many_in_one_group(count);
  }

 private:
  using values = std::vector<Element>;

  /// Element i of what a rank gives to another (or to all).
  static Element given(int by, std::size_t i, int to = 0) {
    return static_cast<Element>((i % 7 + 1) * static_cast<std::size_t>(by + 1) +
                                static_cast<std::size_t>(to));
  }
  static std::shared_ptr<values> gift(int by, std::size_t count, int to = 0) {
    auto made = std::make_shared<values>(count);
    for (std::size_t i = 0; i < count; ++i) (*made)[i] = given(by, i, to);
    return made;
  }
  static nccl::operation from_to(action what, const std::shared_ptr<values>& from,
                                 const std::shared_ptr<values>& to, std::size_t count) {
    nccl::operation made{.what = what, .count = count, .type = type_of<Element>()};
    if (from) made.from = from->data();
    if (to) made.to = to->data();
    made.keep = {from, to};
    return made;
  }

  template <class Expected>
  void compare(const std::string& what, const values& got, const Expected& expected) {
    for (std::size_t i = 0; i < got.size(); ++i) {
      if (got[i] == expected(i)) continue;
      wrong_.push_back(what + " of " + std::to_string(got.size()) + ": element " +
                       std::to_string(i) + " is " + std::to_string(got[i]) + ", not " +
                       std::to_string(expected(i)));
      return;
    }
  }
  bool ran(const std::string& what, std::vector<nccl::operation> group) {
    const auto how = run_group(on_, std::move(group));
    if (!how) wrong_.push_back(what + ": " + how.error().text);
    return how.has_value();
  }

  Element sum_of(std::size_t i) const {
    Element sum = 0;
    for (int rank = 0; rank < ranks_; ++rank) sum = static_cast<Element>(sum + given(rank, i));
    return sum;
  }

  void all_reduce(std::size_t count, reduction by) {
    const auto out = std::make_shared<values>(count);
    auto one = from_to(action::all_reduce, gift(rank_, count), out, count);
    one.by = by;
    if (!ran("all-reduce", {std::move(one)})) return;
    compare("all-reduce", *out, [&](std::size_t i) {
      return by == reduction::sum       ? sum_of(i)
             : by == reduction::maximum ? given(ranks_ - 1, i)
                                        : given(0, i);
    });
  }

  void in_place(std::size_t count) {
    const auto both = gift(rank_, count);
    if (!ran("all-reduce in place", {from_to(action::all_reduce, both, both, count)})) return;
    compare("all-reduce in place", *both, [&](std::size_t i) { return sum_of(i); });
  }

  void reduce_scatter(std::size_t count) {
    const auto in = gift(rank_, count * static_cast<std::size_t>(ranks_));
    const auto out = std::make_shared<values>(count);
    if (!ran("reduce-scatter", {from_to(action::reduce_scatter, in, out, count)})) return;
    compare("reduce-scatter", *out,
            [&](std::size_t i) { return sum_of(static_cast<std::size_t>(rank_) * count + i); });
  }

  void all_gather(std::size_t count) {
    const auto out = std::make_shared<values>(count * static_cast<std::size_t>(ranks_));
    if (!ran("all-gather", {from_to(action::all_gather, gift(rank_, count), out, count)})) return;
    compare("all-gather", *out,
            [&](std::size_t i) { return given(static_cast<int>(i / count), i % count); });
  }

  void broadcast(std::size_t count, int root) {
    const auto in = rank_ == root ? gift(rank_, count) : nullptr;
    const auto out = std::make_shared<values>(count);
    auto one = from_to(action::broadcast, in, out, count);
    one.peer = root;
    if (!ran("broadcast", {std::move(one)})) return;
    compare("broadcast", *out, [&](std::size_t i) { return given(root, i); });
  }

  /// To the next rank and from the one before, in one group.
  void ring(std::size_t count) {
    if (ranks_ == 1) return;
    const int before = (rank_ + ranks_ - 1) % ranks_;
    const auto in = std::make_shared<values>(count);
    auto away = from_to(action::send, gift(rank_, count), nullptr, count);
    auto here = from_to(action::receive, nullptr, in, count);
    away.peer = (rank_ + 1) % ranks_;
    here.peer = before;
    if (!ran("send and receive", {std::move(away), std::move(here)})) return;
    compare("send and receive", *in, [&](std::size_t i) { return given(before, i); });
  }

  /// Shares of each to each, as a reduce-scatter of our own begins.
  void everybody_to_everybody(std::size_t count) {
    if (ranks_ == 1) return;
    std::vector<nccl::operation> group;
    std::vector<std::shared_ptr<values>> got;
    for (int other = 0; other < ranks_; ++other) {
      got.push_back(std::make_shared<values>(count));
      if (other == rank_) continue;
      auto away = from_to(action::send, gift(rank_, count, other), nullptr, count);
      auto here = from_to(action::receive, nullptr, got.back(), count);
      away.peer = here.peer = other;
      group.push_back(std::move(away));
      group.push_back(std::move(here));
    }
    if (!ran("shares", std::move(group))) return;
    for (int other = 0; other < ranks_; ++other)
      if (other != rank_)
        compare("share of rank " + std::to_string(other), *got[static_cast<std::size_t>(other)],
                [&](std::size_t i) { return given(other, i, rank_); });
  }

  void many_in_one_group(std::size_t count) {
    std::vector<nccl::operation> group;
    std::vector<std::shared_ptr<values>> out;
    for (std::size_t i = 0; i < 4; ++i) {
      out.push_back(std::make_shared<values>(count + i));
      group.push_back(from_to(action::all_reduce, gift(rank_, count + i), out.back(), count + i));
    }
    if (!ran("four all-reduces", std::move(group))) return;
    for (const auto& each : out)
      compare("one of four all-reduces", *each, [&](std::size_t i) { return sum_of(i); });
  }

  nccl::communicator& on_;
  const int rank_;
  const int ranks_;
  std::vector<std::string>& wrong_;
};

}  // namespace

result<void> run_group(nccl::communicator& on, std::vector<nccl::operation> group) {
  auto told = std::make_shared<std::promise<result<void>>>();
  auto how = told->get_future();
  on.submit(std::move(group), [told](const result<void>& ended) { told->set_value(ended); });
  if (how.wait_for(std::chrono::minutes(1)) != std::future_status::ready)
    return fail(errc::timed_out, "the communicator has not said how a group ended");
  return how.get();
}

std::vector<std::string> check_conformance(nccl::communicator& under_test, int rank, int ranks) {
  std::vector<std::string> wrong;
  // One, some, and more than one piece of the NCCL of tests, not even ones.
  for (const std::size_t count : {1UL, 1000UL, 50'003UL}) {
    checks<float>(under_test, rank, ranks, wrong).run(count);
    checks<double>(under_test, rank, ranks, wrong).run(count);
    checks<std::int64_t>(under_test, rank, ranks, wrong).run(count);
    checks<std::uint8_t>(under_test, rank, ranks, wrong).run(count);
  }
  return wrong;
}

}  // namespace troupe::tests
