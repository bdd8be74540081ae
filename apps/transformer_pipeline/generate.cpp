#include "apps/transformer_pipeline/generate.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/softmax.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "engine/data/random.hpp"
#include "engine/stage/model.hpp"

namespace troupe::apps {
namespace {

/// [1, T] i64
at::Tensor tokens_of(std::string_view text) {
  auto tokens = at::empty({1, static_cast<std::int64_t>(text.size())}, at::kLong);
  std::ranges::transform(text, tokens.mutable_data_ptr<std::int64_t>(),
                         [](char c) { return static_cast<unsigned char>(c); });
  return tokens;
}

/// [tokens] f32, of what comes behind the last one
at::Tensor chances_after(const engine::model& layers, std::string_view text, double temperature) {
  at::Tensor x = tokens_of(text);
  for (const auto& each : layers) x = engine::run_layer(*each, x, /*training=*/false);
  return at::softmax(x.select(0, 0).select(0, -1).to(at::kFloat).div(temperature), 0).contiguous();
}

char draw(const at::Tensor& chances, engine::splitmix64& random) {
  double left = static_cast<double>(random.next() >> 11) * 0x1p-53;  // [0, 1)
  const auto* chance = chances.const_data_ptr<float>();
  std::int64_t token = 0;
  while (token + 1 < chances.numel() && left >= chance[token]) left -= chance[token++];
  return static_cast<char>(token);
}

}  // namespace

std::string generate(const engine::model& layers, const std::string& prompt,
                     const generation& how) {
  const c10::NoGradGuard no_grad;
  engine::splitmix64 random(how.seed);
  std::string text = prompt;
  for (std::int64_t i = 0; i < how.bytes; ++i) {
    std::string_view seen = text;
    seen.remove_prefix(seen.size() - std::min(seen.size(), static_cast<std::size_t>(how.context)));
    text += draw(chances_after(layers, seen, how.temperature), random);
  }
  return text;
}

std::string printable(std::string text) {
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte >= 0x7f) c = '?';
  }
  return text;
}

}  // namespace troupe::apps
