#include "apps/transformer_pipeline/gpt.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <exception>
#include <memory>

#include "engine/base/torch_error.hpp"
#include "engine/model/transformer_layers.hpp"

namespace troupe::apps {
namespace {

constexpr double deviation = 0.02;

engine::model build(std::int64_t tokens, std::uint64_t seed, const gpt_options& o) {
  const at::Generator random = at::make_generator<at::CPUGeneratorImpl>(seed);
  const double residual = deviation / std::sqrt(2.0 * static_cast<double>(o.layers));
  engine::model layers;
  layers.push_back(std::make_unique<engine::token_embedding>("embed", tokens, o.context, o.width,
                                                             o.dropout, random));
  for (std::int64_t i = 0; i < o.layers; ++i) {
    const auto name = "h" + std::to_string(i);
    layers.push_back(std::make_unique<engine::causal_attention>(
        name + ".attention", o.width, o.heads, residual, o.dropout, random));
    layers.push_back(std::make_unique<engine::feed_forward>(name + ".mlp", o.width, residual,
                                                            o.dropout, random));
  }
  layers.push_back(std::make_unique<engine::layer_norm>("norm", o.width));
  const std::string tied_to = o.tied ? "embed.tokens" : "";
  layers.push_back(
      std::make_unique<engine::token_scores>("head", o.width, tokens, tied_to, random));
  if (o.tied) {
    const c10::NoGradGuard no_grad;
    layers.back()->parameters().front().tensor.copy_(layers.front()->parameters().front().tensor);
  }
  return layers;
}

}  // namespace

std::map<std::string, double> to_map(const gpt_options& o) {
  return {{"layers", static_cast<double>(o.layers)},
          {"width", static_cast<double>(o.width)},
          {"heads", static_cast<double>(o.heads)},
          {"context", static_cast<double>(o.context)},
          {"tied", o.tied ? 1.0 : 0.0},
          {"dropout", o.dropout}};
}

gpt_options gpt_options_of(const std::map<std::string, double>& map) {
  gpt_options o;
  const auto read = [&map](const char* name, auto& into) {
    using value = std::remove_reference_t<decltype(into)>;
    const auto found = map.find(name);
    if (found != map.end()) into = static_cast<value>(found->second);
  };
  read("layers", o.layers);
  read("width", o.width);
  read("heads", o.heads);
  read("context", o.context);
  read("tied", o.tied);
  read("dropout", o.dropout);
  return o;
}

result<engine::model> build_gpt(std::int64_t tokens, std::uint64_t seed,
                                const gpt_options& options) {
  const auto& o = options;
  if (tokens < 1 || o.layers < 1 || o.width < 1 || o.heads < 1 || o.context < 1)
    return fail(errc::bad_config,
                "a decoder needs at least 1 of tokens, layers, width, heads and context");
  if (o.width % o.heads != 0)
    return fail(errc::bad_config, std::to_string(o.heads) + " heads do not divide a width of " +
                                      std::to_string(o.width));
  if (!(o.dropout >= 0 && o.dropout < 1))
    return fail(errc::bad_config, "dropout must be from 0 to below 1");
  try {
    return build(tokens, seed, o);
  } catch (const std::exception& problem) {
    return fail(errc::handler_failed, "building the decoder failed: " + engine::reason_of(problem));
  }
}

}  // namespace troupe::apps
