#include "engine/blueprint/initial_weights.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <utility>

#include "engine/base/torch_error.hpp"

namespace troupe::engine {
namespace {

/// For weights that nobody will see.
at::Generator any_random() {
  return at::make_generator<at::CPUGeneratorImpl>(0);
}

at::Tensor parameter_of(const layer& which, const std::string& name) {
  const auto all = which.parameters();
  const auto found = std::ranges::find(all, name, &named_tensor::name);
  if (found == all.end()) throw std::runtime_error("it has no parameter '" + name + "' to tie");
  return found->tensor;
}

template <class Make>
result<model> slice_of(const model_blueprint& of, layer_range which, const Make& make) {
  const auto [first, last] = which;
  const auto count = of.layers.size();
  if (first >= last || last > count)
    return fail(errc::bad_config, "layers [" + std::to_string(first) + ", " + std::to_string(last) +
                                      ") are not a slice of the model's " + std::to_string(count) +
                                      " layers");
  model layers;
  for (std::size_t i = first; i < last; ++i) {
    auto made = make(i);
    if (!made) return tl::unexpected(made.error());
    layers.push_back(std::move(*made));
  }
  return layers;
}

}  // namespace

initial_weights::initial_weights(model_blueprint of, std::uint64_t seed)
    : blueprint_(std::move(of)), making_{at::make_generator<at::CPUGeneratorImpl>(seed)} {}

result<std::unique_ptr<layer>> initial_weights::make(std::size_t index) try {
  auto made = first_drawn(index);
  if (blueprint_.redraw) redraw(index, *made);
  copy_ties(index, *made);
  return made;
} catch (const std::exception& problem) {
  return fail(errc::handler_failed, "layer " + std::to_string(index) +
                                        " of the model cannot be made: " + reason_of(problem));
}

result<model> initial_weights::make(layer_range which) {
  return slice_of(blueprint_, which, [this](std::size_t index) { return make(index); });
}

std::unique_ptr<layer> initial_weights::first_drawn(std::size_t index) {
  auto& [random, before] = making_;
  if (index < before.size()) return blueprint_.layers.at(index)(before[index].clone());
  std::unique_ptr<layer> made;
  while (before.size() <= index) {
    made.reset();
    const auto& make_next = blueprint_.layers.at(before.size());
    before.push_back(random.clone());
    made = make_next(random);
  }
  return made;
}

void initial_weights::redraw(std::size_t index, layer& which) {
  auto& [random, before] = redrawing_;
  if (index < before.size()) return blueprint_.redraw(which, before[index].clone());
  if (!random.defined()) {
    const auto count = blueprint_.layers.size();
    if (making_.before.size() < count) first_drawn(count - 1).reset();
    random = making_.random.clone();
  }
  while (before.size() < index) {
    const auto dropped = blueprint_.layers[before.size()](any_random());
    before.push_back(random.clone());
    blueprint_.redraw(*dropped, random);
  }
  before.push_back(random.clone());
  blueprint_.redraw(which, random);
}

void initial_weights::copy_ties(std::size_t index, layer& which) {
  for (const auto& [one, other] : which.ties()) {
    const auto earlier = layer_of(one);
    const auto own = parameter_of(which, other);
    const c10::NoGradGuard unrecorded;
    if (earlier == index) {
      own.copy_(parameter_of(which, one));
      continue;
    }
    if (earlier > index) throw std::runtime_error("its tie '" + one + "' is of a later layer");
    const auto made = make(earlier);
    if (!made) throw std::runtime_error(made.error().text);
    own.copy_(parameter_of(**made, one));
  }
}

std::size_t initial_weights::layer_of(const std::string& parameter) {
  if (layer_of_.empty()) {
    const auto layers = describe(blueprint_);
    if (!layers) throw std::runtime_error(layers.error().text);
    for (std::size_t i = 0; i < layers->size(); ++i)
      for (const auto& each : layers->at(i)->parameters()) layer_of_.emplace(each.name, i);
  }
  return layer_of_.at(parameter);  // which `describe` has checked
}

result<model> make_any(const model_blueprint& of, layer_range which) {
  return slice_of(of, which, [&](std::size_t index) { return make_any(of, index); });
}

result<model> make_whole(const model_blueprint& of, std::uint64_t seed) {
  return initial_weights(of, seed).make({0, of.layers.size()});
}

}  // namespace troupe::engine
