#include "engine/collective/packing.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <map>

namespace troupe::engine {
namespace {

std::int64_t filled_up(std::int64_t elements, std::uint32_t ranks) {
  const auto many = static_cast<std::int64_t>(ranks);
  return (elements + many - 1) / many * many;
}

/// A place of `like`'s size, with its layout where it has no gaps.
at::Tensor place_at(const at::Tensor& flat, std::int64_t offset, const at::Tensor& like) {
  const auto run = flat.narrow(0, offset, like.numel());
  if (!like.is_non_overlapping_and_dense()) return run.view(like.sizes());
  return run.as_strided(like.sizes(), like.strides());
}

void fill(const at::Tensor& place, const std::optional<at::Tensor>& part) {
  if (part)
    place.copy_(*part);
  else
    place.fill_(-0.0);  // the neutral element: +0 would turn a sum of -0 into +0
}

}  // namespace

packed_tensors pack_to_sum(const std::vector<std::optional<at::Tensor>>& parts,
                           const std::vector<at::Tensor>& like, std::uint32_t ranks) {
  const at::NoGradGuard unrecorded;
  std::map<at::ScalarType, std::vector<std::size_t>> alike;
  for (std::size_t i = 0; i < like.size(); ++i) alike[like[i].scalar_type()].push_back(i);
  packed_tensors packed{.flat = {}, .views = {}};
  packed.views.resize(like.size());
  for (const auto& [type, which] : alike) {
    std::int64_t elements = 0;
    for (const auto i : which) elements += like[i].numel();
    const auto whole = filled_up(elements, ranks);
    const auto flat = at::empty({whole}, like[which.front()].options().requires_grad(false));
    if (whole > elements) flat.narrow(0, elements, whole - elements).zero_();
    std::int64_t offset = 0;
    for (const auto i : which) {
      const auto place = place_at(flat, offset, like[i]);
      fill(place, parts[i]);
      packed.views[i] = place;
      offset += like[i].numel();
    }
    packed.flat.push_back(flat);
  }
  return packed;
}

}  // namespace troupe::engine
