#include "engine/slices/snapshot.hpp"

#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <utility>

#include "engine/base/torch_error.hpp"

namespace troupe::engine {
namespace {

/// What the owner may have to wait for: 0.1 ms of copying, more or less.
constexpr std::int64_t run_bytes = std::int64_t{1} << 20;

/// A copy of the elements from `first` on in row-major order, about as many as a run has. They are
/// of whole rows where they lie in another order.
at::Tensor copy_of_run(const at::Tensor& from, std::int64_t first) {
  const auto element = static_cast<std::int64_t>(from.element_size());
  const auto most = std::max<std::int64_t>(1, run_bytes / element);
  if (from.is_contiguous()) {
    auto run = at::empty({std::min(most, from.numel() - first)}, from.options());
    std::memcpy(run.mutable_data_ptr(),
                static_cast<const std::byte*>(from.const_data_ptr()) + first * element,
                run.nbytes());
    return run;
  }
  const auto row = from.numel() / from.size(0);
  const auto at = first / row;
  const auto rows = std::min(std::max<std::int64_t>(1, most / row), from.size(0) - at);
  return from.narrow(0, at, rows).clone(at::MemoryFormat::Contiguous).view({-1});
}

}  // namespace

snapshot::snapshot(const named_tensor& of, elements how)
    : form_(form_of(of)),
      tensor_(of.tensor.detach().resolve_neg()),
      is_own_(how == elements::stay) {}

void snapshot::make_own(const std::function<at::Tensor(const at::Tensor&)>& copy) {
  const std::scoped_lock alone(lock_);
  if (is_own_ || !tensor_) return;
  is_own_ = true;
  try {
    tensor_ = copy(*tensor_);
  } catch (const std::exception& problem) {
    tensor_ = fail(errc::handler_failed,
                   "\"" + form_.name +
                       "\" could not be copied before a step changed it: " + reason_of(problem));
  }
}

result<at::Tensor> snapshot::next_run(std::int64_t first) {
  std::unique_lock alone(lock_);
  const auto from = tensor_;
  if (!from) return from;
  if (!is_own_) return copy_of_run(*from, first);
  alone.unlock();
  return from->contiguous().view({-1}).narrow(0, first, from->numel() - first);
}

result<void> snapshot::read(const tensor_stream::taker& take) {
  const auto all = c10::multiply_integers(form_.shape);
  std::int64_t at = 0;
  do {
    const auto run = next_run(at);
    if (!run) return tl::unexpected(run.error());
    if (auto taken = take(form_.name, static_cast<std::uint64_t>(at), *run); !taken) return taken;
    at += run->numel();
  } while (at < all);
  const std::scoped_lock alone(lock_);
  tensor_ = has_been_read();
  return {};
}

result<at::Tensor> snapshot::read_whole() {
  {
    const std::scoped_lock alone(lock_);
    if (!tensor_ || is_own_) return std::exchange(tensor_, has_been_read());
  }
  auto whole = at::empty(form_.shape, form_.type);
  const auto flat = whole.view({-1});
  const auto put = [&](const std::string&, std::uint64_t first, const at::Tensor& run) {
    flat.narrow(0, static_cast<std::int64_t>(first), run.numel()).copy_(run);
    return result<void>();
  };
  return read(put).map([&] { return whole; });
}

tl::unexpected<error> snapshot::has_been_read() const {
  return fail(errc::stale, "\"" + form_.name + "\" has been read");
}

shown_tensors snapshots_of(const std::vector<named_tensor>& tensors, snapshot::elements how) {
  shown_tensors all;
  for (const auto& each : tensors) all.push_back(std::make_shared<snapshot>(each, how));
  return all;
}

void unread_snapshots::add(const shown_tensors& shown) {
  std::erase_if(all_, [](const auto& each) { return each.expired(); });
  all_.insert(all_.end(), shown.begin(), shown.end());
}

void unread_snapshots::make_own(const std::function<at::Tensor(const at::Tensor&)>& copy) {
  for (const auto& each : std::exchange(all_, {}))
    if (const auto unread = each.lock()) unread->make_own(copy);
}

tensor_stream stream_of(shown_tensors tensors) {
  tensor_stream made;
  for (const auto& each : tensors) made.forms.push_back(each->form());
  made.send = [held = std::move(tensors)](const tensor_stream::taker& take) -> result<void> {
    for (const auto& each : held)
      if (auto taken = each->read(take); !taken) return taken;
    return {};
  };
  return made;
}

}  // namespace troupe::engine
