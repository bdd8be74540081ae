#include "apps/transformer_pipeline/application.hpp"

#include <cmath>

#include "apps/transformer_pipeline/generate.hpp"
#include "apps/transformer_pipeline/gpt.hpp"
#include "apps/transformer_pipeline/settings.hpp"
#include "messages/base/format.hpp"

namespace troupe::apps {
namespace {

cluster::trainer_config defaults() {
  cluster::trainer_config config;
  config.model.name = "gpt";
  config.data.source = "text";
  config.train.batch_size = 16;
  config.optimizer.options["lr"] = 0.2;
  return config;
}

gpt_options options_of(const transformer_settings& model) {
  return {model.layers, model.width, model.heads, model.context, model.tied, model.dropout};
}

/// exp of the mean loss of a byte: among how many equally likely bytes it is as good as guessing.
std::string perplexity(const cluster::evaluation_report& of) {
  return format("perplexity after step %llu: %.3f", static_cast<unsigned long long>(of.eval_step),
                std::exp(of.value_of("loss").value()));
}

result<std::string> sample(const application::predictor& predict,
                           const cluster::trainer_config& config) {
  const auto model = config.own.of<transformer_settings>();
  if (model.sample_bytes == 0 || model.prompt.empty()) return "";
  return generate(
             predict, model.prompt,
             {.context = model.context, .bytes = model.sample_bytes, .seed = config.train.seed})
      .map([](const std::string& text) { return "a sample:\n" + printable(text); });
}

}  // namespace

application transformer_application() {
  application made;
  made.info = {.name = "transformer_pipeline",
               .version = TROUPE_VERSION,
               .summary =
                   "Trains a GPT-style decoder on text as a pipeline of stage actors in processes "
                   "of their own.",
               .defaults = defaults(),
               .own = transformer_options(),
               .check = check_transformer};
  made.info.known.models["gpt"] = [](const engine::model_order& order) {
    return gpt_blueprint(order.classes, gpt_options_of(order.options));
  };
  made.model_options = [](const cluster::trainer_config& config) {
    return to_map(options_of(config.own.of<transformer_settings>()));
  };
  made.adjust_data = [](const cluster::trainer_config& config, engine::dataset_options& options) {
    options.context = config.own.of<transformer_settings>().context;
  };
  made.check_data = [](const cluster::trainer_config& config,
                       const engine::dataset& data) -> result<void> {
    if (data.sample_shape().size() == 1) return {};
    return fail(errc::bad_config,
                config.data.source +
                    ": a decoder is trained on text, not on images: name a source "
                    "text:PATH,..");
  };
  made.describe = perplexity;
  made.show = sample;
  return made;
}

}  // namespace troupe::apps
