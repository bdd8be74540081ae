#include "engine/partition/tables/layer_table.hpp"

#include <algorithm>
#include <cstddef>

#include "messages/base/format.hpp"

namespace troupe::engine {
namespace {

constexpr double giga = 1e9;
constexpr double milli = 1e3;

void add_to(work_total& sum, const work_total& more) {
  sum.seconds += more.seconds;
  sum.flops += more.flops;
  sum.bytes += more.bytes;
}

layer_work sum_of(const std::vector<layer_work>& layers) {
  layer_work sum{.name = "all layers"};
  for (const auto& each : layers)
    for (const auto kind : {&layer_work::forward, &layer_work::input_gradient,
                            &layer_work::weight_gradient, &layer_work::update})
      add_to(sum.*kind, each.*kind);
  return sum;
}

/// Amount a second in units of 1e9; "-" where there is nothing to say.
std::string rate(double amount, double seconds) {
  return amount > 0 && seconds > 0 ? format("%8.1f", amount / seconds / giga) : "       -";
}

std::string in_ms(double seconds) {
  return format(" %8.1f", milli * seconds);
}

std::string ms_and_rates(const work_total& of) {
  return in_ms(of.seconds) + rate(of.flops, of.seconds) + rate(of.bytes, of.seconds);
}

std::string line_of_layer(const layer_work& of) {
  return format("%-18s", of.name.c_str()) + ms_and_rates(of.forward) +
         ms_and_rates(of.input_gradient) + ms_and_rates(of.weight_gradient) +
         in_ms(of.update.seconds) + rate(of.update.bytes, of.update.seconds) + in_ms(of.seconds());
}

/// Under the columns of the rates.
std::string line_of_most(const kernels::machine_rates& most) {
  const auto bytes = rate(most.memory_bytes_per_s, 1);
  const auto both = format(" %8s", "") + rate(most.flops_per_s, 1) + bytes;
  return format("%-18s", "a stage at most") + both + both + both + format(" %8s", "") + bytes;
}

std::string line_of_seconds(const char* what, double seconds) {
  constexpr int columns = 3 * (9 + 2 * 8) + 9 + 8;  // before the last one
  return format("%-18s%*s", what, columns, "") + in_ms(seconds);
}

}  // namespace

double step_work::seconds() const noexcept {
  double sum = sending_s + idle_s;
  for (const auto& each : layers) sum += each.seconds();
  return sum;
}

step_work work_of(const cost_model& costs, const planning& how, const prediction& of) {
  const double times = of.microbatches;
  const double adding = 2 * times - 1;  // a sum is read and written, and first only written
  const auto batch = static_cast<double>(how.batch_size);
  const auto at = costs.at(batch / times).layers;
  step_work made;
  double given_bytes = batch * how.sample_bytes;
  double layers_s = 0;
  for (std::size_t i = 0; i < at.size(); ++i) {
    const auto& layer = at[i];
    const double again = i < how.recompute.size() && how.recompute[i] ? 2 : 1;
    const double flops = 2 * layer.macs * batch;
    const auto weights = static_cast<double>(layer.parameter_bytes);
    const double gives_bytes = times * layer.output_bytes;
    const double moved_bytes = given_bytes + gives_bytes;  // or as many of their gradients
    made.layers.push_back({.name = layer.name,
                           .forward = {again * times * layer.forward_s, again * flops,
                                       again * (moved_bytes + times * weights)},
                           .input_gradient = {times * layer.input_s, i == 0 ? 0 : flops,
                                              i == 0 ? 0 : moved_bytes + times * weights},
                           .weight_gradient = {times * layer.weight_s, weights > 0 ? flops : 0,
                                               weights > 0 ? moved_bytes + adding * weights : 0},
                           .update = {layer.update_s, 0, update_passes * weights}});
    layers_s += made.layers.back().seconds();
    given_bytes = gives_bytes;
  }
  double busy_s = 0;
  for (const auto& stage : of.stages) busy_s += stage.busy_s;
  made.sending_s = std::max(0.0, busy_s - layers_s);
  made.idle_s = std::max(0.0, of.step_s * static_cast<double>(of.stages.size()) - busy_s);
  return made;
}

std::vector<std::string> to_lines(const step_work& of, const kernels::machine_rates& most) {
  std::vector<std::string> lines{"a step of all stages, in ms; rates in GFLOP/s and GB/s",
                                 format("%-18s %8s%8s%8s %8s%8s%8s %8s%8s%8s %8s%8s %8s", "layer",
                                        "forward", "GFLOP/s", "GB/s", "input", "GFLOP/s", "GB/s",
                                        "weights", "GFLOP/s", "GB/s", "update", "GB/s", "in all")};
  for (const auto& each : of.layers) lines.push_back(line_of_layer(each));
  lines.push_back(line_of_layer(sum_of(of.layers)));
  if (most.flops_per_s > 0) lines.push_back(line_of_most(most));
  lines.push_back(line_of_seconds("sending", of.sending_s));
  lines.push_back(line_of_seconds("idle", of.idle_s));
  lines.push_back(line_of_seconds("in all", of.seconds()));
  return lines;
}

}  // namespace troupe::engine
