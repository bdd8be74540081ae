#include "engine/partition/partition.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "messages/base/near_miss.hpp"

namespace troupe::engine {

namespace {

std::string quoted(const std::string& name) {
  return "'" + name + "'";
}

std::string allowed_names(const std::vector<std::string>& layer_names) {
  if (layer_names.size() < 2) return "; a model of one layer cannot be cut";
  std::string list = "; a cut may be one of: ";
  for (std::size_t i = 1; i < layer_names.size(); ++i) list += (i > 1 ? ", " : "") + layer_names[i];
  return list;
}

// "; did you mean 'auto'?", or nothing. Where there is one word only, it may have been meant for
// the one that --partition takes instead of cuts.
std::string near_cut(const std::vector<std::string>& layer_names, const std::string& cut,
                     bool is_alone) {
  std::vector<std::string_view> known;
  if (is_alone) known = {"auto", "even"};
  for (std::size_t i = 1; i < layer_names.size(); ++i) known.emplace_back(layer_names[i]);
  const auto meant = nearest(cut, known);
  return meant ? "; did you mean " + quoted(std::string(*meant)) + "?" : "";
}

// Index of the layer called `cut`, else of the first one in the group of that name, else the size.
std::size_t find_layer(const std::vector<std::string>& layer_names, const std::string& cut) {
  auto found = std::ranges::find(layer_names, cut);
  if (found == layer_names.end() && !cut.empty())
    found = std::ranges::find_if(layer_names, [prefix = cut + "."](const std::string& name) {
      return name.starts_with(prefix);
    });
  return static_cast<std::size_t>(found - layer_names.begin());
}

// The layer that `cut` is a part of; empty: of none.
std::string layer_around(const std::vector<std::string>& layer_names, const std::string& cut) {
  for (const auto& name : layer_names)
    if (cut.starts_with(name + ".")) return name;
  return "";
}

result<void> check_costs(const std::vector<double>& costs) {
  double sum = 0;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    sum += costs[i];
    if (costs[i] >= 0 && std::isfinite(sum)) continue;
    return fail(errc::bad_config, "the cost of layer " + std::to_string(i) + " is " +
                                      std::to_string(costs[i]) +
                                      "; costs are numbers from 0 up with a finite sum");
  }
  return {};
}

// The best way to run the first `end` layers in some number of stages.
struct best_cut {
  double worst = std::numeric_limits<double>::infinity();
  std::size_t last_begin = 0;  // first layer of the last stage
};

}  // namespace

result<std::vector<std::size_t>> parse_cuts(const std::vector<std::string>& layer_names,
                                            const std::vector<std::string>& cuts) {
  std::vector<std::size_t> indices;
  for (const auto& cut : cuts) {
    const auto index = find_layer(layer_names, cut);
    std::string problem;
    if (index == layer_names.size()) {
      const auto around = layer_around(layer_names, cut);
      problem = around.empty()
                    ? " names no layer" + near_cut(layer_names, cut, cuts.size() == 1)
                    : " lies inside of the layer " + quoted(around) + ", which cannot be cut";
    } else if (index == 0) {
      problem = " is where the first stage begins anyway";
    } else if (!indices.empty() && index == indices.back()) {
      problem = " repeats the cut before it";
    } else if (!indices.empty() && index < indices.back()) {
      problem = " lies before the cut " + quoted(layer_names[indices.back()]) +
                "; cuts go in the order of the layers";
    }
    if (!problem.empty())
      return fail(errc::bad_config, "cut " + quoted(cut) + problem + allowed_names(layer_names) +
                                        "; without cuts, --partition takes auto or even");
    indices.push_back(index);
  }
  return indices;
}

result<void> check_stages(std::size_t layers, std::size_t stages, std::size_t chunks) {
  if (stages == 0) return fail(errc::bad_config, "a pipeline needs at least 1 stage");
  if (stages * chunks <= layers) return {};
  const auto cut =
      "cannot cut " + std::to_string(layers) + " layers into " + std::to_string(stages) + " stages";
  if (chunks == 1) return fail(errc::bad_config, cut + ": every stage needs at least one layer");
  return fail(errc::bad_config, cut + " with " + std::to_string(chunks) +
                                    " chunks each: every chunk needs at least one layer");
}

result<std::vector<std::size_t>> even_cuts(const std::vector<double>& costs, std::size_t stages) {
  if (auto fits = check_stages(costs.size(), stages); !fits) return tl::unexpected(fits.error());
  if (auto sound = check_costs(costs); !sound) return tl::unexpected(sound.error());
  std::vector<double> sums(costs.size() + 1, 0);  // of the first layers
  for (std::size_t i = 0; i < costs.size(); ++i) sums[i + 1] = sums[i] + costs[i];
  return *minimax_cuts(stages, costs.size(), [&](std::size_t, std::size_t first, std::size_t last) {
    return sums[last] - sums[first];
  });
}

std::optional<std::vector<std::size_t>> minimax_cuts(std::size_t stages, std::size_t layers,
                                                     const cut_cost& cost) {
  std::vector<std::vector<best_cut>> best(1, std::vector<best_cut>(layers + 1));
  best[0][0].worst = 0;  // no layer needs no stage
  for (std::size_t stage = 0; stage < stages; ++stage) {
    std::vector<best_cut> after(layers + 1);
    for (std::size_t end = stage + 1; end + (stages - stage - 1) <= layers; ++end)
      for (std::size_t begin = stage; begin < end; ++begin) {
        if (!std::isfinite(best[stage][begin].worst)) continue;
        const double worst = std::max(best[stage][begin].worst, cost(stage, begin, end));
        if (std::isfinite(worst) && worst <= after[end].worst) after[end] = {worst, begin};
      }
    best.push_back(std::move(after));
  }
  if (!std::isfinite(best[stages][layers].worst)) return std::nullopt;
  std::vector<std::size_t> cuts(stages - 1);
  std::size_t end = layers;
  for (std::size_t stage = stages - 1; stage > 0; --stage)
    end = cuts[stage - 1] = best[stage + 1][end].last_begin;
  return cuts;
}

}  // namespace troupe::engine
