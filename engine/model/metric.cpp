#include "engine/model/metric.hpp"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <utility>

#include "engine/model/loss.hpp"
#include "messages/base/near_miss.hpp"

namespace troupe::engine {

metric_registry built_in_metrics() {
  metric_registry made;
  made.add("accuracy",
           {.sum = [](const evaluated_batch& of) { return rows_correct(of.outputs, of.labels); },
            .is_share = true});
  made.add(
      "loss",
      {.sum = [](const evaluated_batch& of) { return of.loss.to(at::kDouble) * of.labels.numel(); },
       .key = "eval_loss"});
  return made;
}

std::vector<std::string> names_of(const metric_registry& metrics) {
  const auto names = metrics.names();
  return {names.begin(), names.end()};
}

result<metric_registry> find_metrics(const metric_registry& known,
                                     const std::vector<std::string>& names) {
  metric_registry found;
  for (const auto& name : names) {
    const auto* one = known.find(name);
    if (one == nullptr)
      return fail(errc::bad_config, "unknown metric '" + name + "'; known: " + join(known.names()));
    found.add(name, *one);
  }
  return found;
}

std::vector<at::Tensor> sums_of(const metric_registry& metrics, const evaluated_batch& of) {
  std::vector<at::Tensor> sums;
  for (const auto& [name, each] : metrics) {
    auto sum = each.sum(of);
    if (!sum.defined() || sum.numel() != 1)
      throw std::invalid_argument("the metric '" + name +
                                  "' gives a tensor that is not one number");
    sums.push_back(std::move(sum));
  }
  return sums;
}

void add_sums(std::vector<double>& into, const std::vector<double>& more) {
  into.resize(std::max(into.size(), more.size()));
  for (std::size_t i = 0; i < more.size(); ++i) into[i] += more[i];
}

}  // namespace troupe::engine
