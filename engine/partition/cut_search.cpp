#include "engine/partition/cut_search.hpp"

#include <algorithm>
#include <utility>

namespace troupe::engine {
namespace {

/// The first layers, cut into the first slices.
struct beginning {
  std::vector<std::size_t> ends;  // of its slices
  std::vector<double> loads;      // by stage
  double unevenness = 0;  // squares of what the stages have above or below their slices' shares
};
using beam = std::vector<beginning>;

/// A beginning with one slice more.
struct extension {
  double unevenness = 0;
  const beginning* from = nullptr;
  double load = 0;  // of the slice
};

class searcher {
 public:
  searcher(const slicing& of, std::size_t width) : of_(of), width_(width) {
    share_ = of.load(0, {0, of.layers}) / of.layout.virtual_stages();
  }

  std::vector<std::vector<std::size_t>> search() const {
    const auto virtual_stages = of_.layout.virtual_stages();
    std::vector<beam> beams(of_.layers + 1);  // by the number of layers cut off
    beams[0].push_back({{}, std::vector<double>(of_.layout.stages), 0});
    for (std::uint32_t at = 0; at < virtual_stages; ++at) {
      std::vector<beam> next(beams.size());
      const std::size_t after = virtual_stages - at - 1;  // slices, each of a layer or more
      for (std::size_t end = after == 0 ? of_.layers : at + 1; end + after <= of_.layers; ++end)
        next[end] = extend(beams, at, end);
      beams = std::move(next);
    }
    std::vector<std::vector<std::size_t>> found;
    for (auto& each : beams.back()) {
      each.ends.pop_back();
      found.push_back(std::move(each.ends));
    }
    return found;
  }

 private:
  beam extend(const std::vector<beam>& beams, std::uint32_t at, std::size_t end) const {
    const auto [stage, chunk] = of_.layout.slice_at(at);
    std::vector<extension> all;
    for (std::size_t begin = at; begin < end; ++begin) {
      if (beams[begin].empty()) continue;
      const double load = of_.load(at, {begin, end});
      for (const auto& from : beams[begin]) {
        const double before = from.loads[stage] - share_ * chunk;
        const double now = before + load - share_;
        all.push_back({from.unevenness - before * before + now * now, &from, load});
      }
    }
    const auto pop_order = std::ranges::greater();
    std::ranges::make_heap(all, pop_order, &extension::unevenness);
    beam best;
    while (!all.empty() && best.size() < width_) {
      std::ranges::pop_heap(all, pop_order, &extension::unevenness);
      auto made = extended(all.back(), stage, end);
      if (fits(made, stage, chunk)) best.push_back(std::move(made));
      all.pop_back();
    }
    return best;
  }

  static beginning extended(const extension& by, std::uint32_t stage, std::size_t end) {
    beginning made = *by.from;
    made.ends.push_back(end);
    made.loads[stage] += by.load;
    made.unevenness = by.unevenness;
    return made;
  }

  bool fits(const beginning& so_far, std::uint32_t stage, std::uint32_t chunk) const {
    if (!of_.fits) return true;
    std::vector<layer_range> slices;
    for (std::uint32_t c = 0; c <= chunk; ++c) {
      const auto at = of_.layout.virtual_stage_of({stage, c});
      slices.push_back({at == 0 ? 0 : so_far.ends[at - 1], so_far.ends[at]});
    }
    return of_.fits(stage, slices);
  }

  const slicing& of_;
  const std::size_t width_;
  double share_ = 0;  // of a slice, were all equal
};

}  // namespace

std::vector<std::vector<std::size_t>> search_cuts(const slicing& of, std::size_t width) {
  return searcher(of, width).search();
}

}  // namespace troupe::engine
