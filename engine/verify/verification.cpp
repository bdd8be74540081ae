#include "engine/verify/verification.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/max.h>
#include <ATen/ops/sub.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/device/device_streams.hpp"
#include "messages/base/format.hpp"

namespace troupe::engine {
namespace {

bool same_bits(const at::Tensor& one, const at::Tensor& other) {
  if (one.sizes() != other.sizes() || one.scalar_type() != other.scalar_type()) return false;
  const auto a = one.resolve_neg().contiguous();
  const auto b = other.resolve_neg().contiguous();
  return a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

double largest_entry(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.to(at::kDouble).abs().max().item<double>();
}

// A difference that is not a number is beyond every tolerance.
bool within(double difference, double scale, double tolerance) {
  return difference <= tolerance * scale;
}

std::vector<tensor_difference> compare_all(const std::vector<named_tensor>& pipeline,
                                           const std::vector<named_tensor>& one_process,
                                           double tolerance) {
  std::vector<tensor_difference> all;
  for (const auto& here : pipeline) {
    const auto there = std::ranges::find(one_process, here.name, &named_tensor::name);
    if (there == one_process.end())
      all.push_back({.name = here.name, .problem = "unknown in one process"});
    else
      all.push_back(compare_tensors(here, there->tensor, tolerance));
  }
  for (const auto& there : one_process)
    if (std::ranges::find(pipeline, there.name, &named_tensor::name) == pipeline.end())
      all.push_back({.name = there.name, .problem = "unknown in the pipeline"});
  return all;
}

std::string number(double value) {
  return format("%.3g", value);
}

std::string line_of(const char* what, const tensor_difference& of) {
  return std::string(of.passed ? "  pass  " : "  FAIL  ") + what + " " + in_words(of);
}

std::string loss_line(const verification& of) {
  return format("%sloss: %.9g in the pipeline, %.9g in one process, difference %.3g",
                of.loss_passed ? "  pass  " : "  FAIL  ", of.pipeline_loss, of.one_process_loss,
                std::abs(of.pipeline_loss - of.one_process_loss));
}

}  // namespace

std::string in_words(const tensor_difference& of) {
  if (!of.problem.empty()) return of.name + ": " + of.problem;
  if (of.same_bits) return of.name + ": same bits, largest " + number(of.scale);
  return of.name + ": differs by " + number(of.largest) + ", largest " + number(of.scale);
}

bool verification::passed() const {
  const auto fine = [](const tensor_difference& each) { return each.passed; };
  return loss_passed && std::ranges::all_of(gradients, fine) && std::ranges::all_of(buffers, fine);
}

tensor_difference compare_tensors(const named_tensor& from, const at::Tensor& other,
                                  double tolerance) {
  // Where they lie does not matter, and elements are looked at on the host.
  const named_tensor here{from.name, to_host(from.tensor)};
  const auto there = to_host(other);
  const at::NoGradGuard no_grad;
  tensor_difference out{.name = here.name};
  if (!here.tensor.defined() && !there.defined()) {
    out.same_bits = out.passed = true;
  } else if (!here.tensor.defined() || !there.defined()) {
    out.problem = here.tensor.defined() ? "missing in one process" : "missing in the pipeline";
  } else if (here.tensor.sizes() != there.sizes()) {
    out.problem = "of another shape";
  } else {
    out.same_bits = same_bits(here.tensor, there);
    out.scale = largest_entry(there);
    out.largest = largest_entry(here.tensor.to(at::kDouble).sub(there.to(at::kDouble)));
    const bool close = tolerance > 0 && within(out.largest, out.scale, tolerance);
    out.passed = std::isfinite(out.scale) && (out.same_bits || close);
  }
  return out;
}

verification compare(const step_result& pipeline, const step_result& one_process,
                     double tolerance) {
  const at::NoGradGuard no_grad;
  const double apart = std::abs(pipeline.loss - one_process.loss);
  return {.tolerance = tolerance,
          .pipeline_loss = pipeline.loss,
          .one_process_loss = one_process.loss,
          .loss_passed = within(apart, std::abs(one_process.loss), tolerance),
          .gradients = compare_all(pipeline.gradients, one_process.gradients, tolerance),
          .buffers = compare_all(pipeline.buffers, one_process.buffers, tolerance)};
}

std::vector<std::string> to_lines(const verification& outcome) {
  std::vector<std::string> lines;
  std::size_t failed = outcome.loss_passed ? 0 : 1;
  const auto add = [&](const char* what, const std::vector<tensor_difference>& all) {
    for (const auto& each : all) {
      lines.push_back(line_of(what, each));
      failed += each.passed ? 0 : 1;
    }
  };
  add("gradient of", outcome.gradients);
  add("buffer", outcome.buffers);
  lines.push_back(loss_line(outcome));
  const std::string measure =
      outcome.tolerance > 0
          ? "differences up to " + number(outcome.tolerance) + " of a tensor's largest entry"
          : "none, every bit must be the same";
  lines.push_back("verify: " + std::to_string(outcome.gradients.size()) + " gradients, " +
                  std::to_string(outcome.buffers.size()) + " buffers and the loss: " +
                  (failed == 0 ? "passed" : std::to_string(failed) + " FAILED") +
                  " (tolerance: " + measure + ")");
  return lines;
}

}  // namespace troupe::engine
