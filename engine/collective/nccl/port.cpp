#include "engine/collective/nccl/port.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "engine/collective/nccl/torch_device.hpp"
#include "engine/collective/tree.hpp"

namespace troupe::engine::nccl {
namespace {

/// The elements of a tensor in the order of memory. [n]
at::Tensor flat(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.detach().as_strided({tensor.numel()}, {1}) : tensor;
}

/// Steps of a group: what is sent at first, what is added then, and who gets the sums. A step that
/// stays empty is left out.
class plan {
 public:
  plan(std::uint32_t rank, std::uint32_t ranks, sum_order order)
      : rank_(rank), ranks_(ranks), order_(order) {}

  void add(const collective_operation& one) {
    const bool sums = one.what == collective::reduce || one.what == collective::all_reduce ||
                      one.what == collective::reduce_scatter;
    // NCCL has no reduce in our table; its parts are as many bytes either way.
    const bool by_nccl = order_ == sum_order::fast && one.what != collective::reduce;
    const auto from = flat(one.from), to = flat(one.to);
    if (!sums || by_nccl) return put(parts_, one.what, from, to, one.peer);
    if (one.what == collective::all_reduce) return all_reduce(from, to);
    if (one.what == collective::reduce_scatter) return reduce_scatter(from, to);
    reduce(from, to, one.peer);
  }

  [[nodiscard]] result<std::vector<stream_step>> steps() && {
    if (fault_) return tl::unexpected(*fault_);
    std::vector<stream_step> all;
    if (!parts_.empty()) all.push_back({.group = std::move(parts_)});
    if (!sums_.empty())
      all.push_back({.kernels = [sums = std::move(sums_)] {
        const at::NoGradGuard unrecorded;
        for (const auto& each : sums) each();
      }});
    if (!shares_.empty()) all.push_back({.group = std::move(shares_)});
    return all;
  }

 private:
  void put(std::vector<operation>& group, action what, const at::Tensor& from, const at::Tensor& to,
           std::uint32_t peer = 0) {
    auto made = operation_on(what, from, to, static_cast<int>(ranks_), static_cast<int>(peer));
    if (made)
      group.push_back(std::move(*made));
    else if (!fault_)
      fault_ = made.error();
  }

  /// Where share `rank` of a tensor begins and ends.
  [[nodiscard]] at::Tensor share_of(const at::Tensor& whole, std::uint32_t rank) const {
    const auto elements = whole.numel();
    const auto each = (elements + ranks_ - 1) / ranks_;
    const auto begin = std::min(elements, each * rank);
    return whole.narrow(0, begin, std::min(each, elements - begin));
  }

  /// Other ranks' parts, which are received, with the own one in its place: the last addition goes
  /// to `to`, and those before it over what was received. So all memory is taken here, by the
  /// caller: the communicator's thread is watched, and an allocator may wait for the device.
  void add_up(const at::Tensor& own, const at::Tensor& to) {
    if (to.numel() == 0) return;
    std::vector<at::Tensor> all(ranks_);
    for (std::uint32_t other = 0; other < ranks_; ++other) {
      all[other] = other == rank_ ? own : at::empty_like(to);
      if (other != rank_) put(parts_, action::receive, {}, all[other], other);
    }
    sums_.emplace_back([all = std::move(all), own, to] {
      auto additions = all.size() - 1;
      const auto whole = tree_sum(all, [&](const at::Tensor& left, const at::Tensor& right) {
        auto sum = --additions == 0 ? to : left.is_same(own) ? right : left;
        return at::add_out(sum, left, right);
      });
      if (all.size() == 1) to.copy_(whole);
    });
  }

  void send(const at::Tensor& what, std::uint32_t to) {
    if (what.numel() > 0) put(parts_, action::send, what, {}, to);
  }

  void reduce(const at::Tensor& from, const at::Tensor& to, std::uint32_t root) {
    if (rank_ == root) return add_up(from, to);
    send(from, root);
  }

  void reduce_scatter(const at::Tensor& from, const at::Tensor& to) {
    for (std::uint32_t other = 0; other < ranks_; ++other)
      if (other != rank_) send(share_of(from, other), other);
    add_up(share_of(from, rank_), to);
  }

  void all_reduce(const at::Tensor& from, const at::Tensor& to) {
    const auto own = share_of(to, rank_);
    reduce_scatter(from, own);
    if (ranks_ < 2) return;
    // An all-gather wants equal shares.
    if (to.numel() % ranks_ == 0) return put(shares_, action::all_gather, own, to);
    for (std::uint32_t other = 0; other < ranks_; ++other) {
      if (other == rank_) continue;
      const auto theirs = share_of(to, other);
      if (own.numel() > 0) put(shares_, action::send, own, {}, other);
      if (theirs.numel() > 0) put(shares_, action::receive, {}, theirs, other);
    }
  }

  const std::uint32_t rank_, ranks_;
  const sum_order order_;
  std::vector<operation> parts_;
  std::vector<std::function<void()>> sums_;
  std::vector<operation> shares_;
  std::optional<error> fault_;
};

}  // namespace

port::port(terms how, sum_order order)
    : rank_(static_cast<std::uint32_t>(how.rank)),
      ranks_(static_cast<std::uint32_t>(how.invited.ranks)),
      order_(order),
      own_(std::move(how), [](const result<void>&) {}) {}

port::~port() {
  own_.lose({errc::cancelled, "the communicator was given up"});
}

void port::submit(std::vector<collective_operation> group, done ended, started begun) {
  plan made(rank_, ranks_, order_);
  result<void> sound;
  for (const auto& each : group) {
    sound = check(each, rank_, ranks_);
    if (!sound) break;
    made.add(each);
  }
  if (!sound) return own_.submit(tl::unexpected(sound.error()), std::move(ended));
  own_.submit(std::move(made).steps(), std::move(ended), std::move(begun));
}

}  // namespace troupe::engine::nccl
