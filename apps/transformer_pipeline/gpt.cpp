#include "apps/transformer_pipeline/gpt.hpp"

#include <cmath>
#include <type_traits>

#include "engine/model/transformer_layers.hpp"

namespace troupe::apps {
namespace {

constexpr double deviation = 0.02;

engine::model_blueprint blueprint(std::int64_t tokens, const gpt_options& o) {
  const double residual = deviation / std::sqrt(2.0 * static_cast<double>(o.layers));
  engine::model_blueprint made;
  made.add<engine::token_embedding>("embed", tokens, o.context, o.width, o.dropout);
  for (std::int64_t i = 0; i < o.layers; ++i) {
    const auto name = "h" + std::to_string(i);
    made.add<engine::causal_attention>(name + ".attention", o.width, o.heads, residual, o.dropout);
    made.add<engine::feed_forward>(name + ".mlp", o.width, residual, o.dropout);
  }
  made.add<engine::layer_norm>("norm", o.width);
  made.add<engine::token_scores>("head", o.width, tokens,
                                 std::string(o.tied ? "embed.tokens" : ""));
  return made;
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

result<engine::model_blueprint> gpt_blueprint(std::int64_t tokens, const gpt_options& options) {
  const auto& o = options;
  if (tokens < 1 || o.layers < 1 || o.width < 1 || o.heads < 1 || o.context < 1)
    return fail(errc::bad_config,
                "a decoder needs at least 1 of tokens, layers, width, heads and context");
  if (o.width % o.heads != 0)
    return fail(errc::bad_config, std::to_string(o.heads) + " heads do not divide a width of " +
                                      std::to_string(o.width));
  if (!(o.dropout >= 0 && o.dropout < 1))
    return fail(errc::bad_config, "dropout must be from 0 to below 1");
  return blueprint(tokens, o);
}

}  // namespace troupe::apps
