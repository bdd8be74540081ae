#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "engine/blueprint/model_blueprint.hpp"
#include "messages/base/error.hpp"

namespace troupe::apps {

/// The shape of a GPT-style decoder.
struct gpt_options {
  std::int64_t layers = 4;
  std::int64_t width = 128;
  std::int64_t heads = 4;
  std::int64_t context = 128;  ///< The longest sequence.
  bool tied = true;            ///< One weight embeds tokens and scores them.
  double dropout = 0;
};

/// As they travel in a model_order, and back; what is missing has its default.
[[nodiscard]] std::map<std::string, double> to_map(const gpt_options& options);
[[nodiscard]] gpt_options gpt_options_of(const std::map<std::string, double>& map);

/// A decoder as a list of layers `embed, h0.attention, h0.mlp, h1.attention, .., norm, head` over
/// tokens [N, T] i64, giving scores [N, T, tokens]. Radford et al., "Language Models are
/// Unsupervised Multitask Learners", 2019: norms before the blocks, weights drawn from N(0, 0.02),
/// those that lead back into the residual divided by the root of their number. Tied, `head.weight`
/// starts as `embed.tokens`, and the layer declares the tie. Errors: bad_config for sizes below 1
/// and heads that do not divide the width.
[[nodiscard]] result<engine::model_blueprint> gpt_blueprint(std::int64_t tokens,
                                                            const gpt_options& options);

}  // namespace troupe::apps
