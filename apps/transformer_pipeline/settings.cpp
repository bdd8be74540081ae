#include "apps/transformer_pipeline/settings.hpp"

#include "cluster/config/option_fields.hpp"

namespace troupe::apps {

std::vector<cluster::option> transformer_options() {
  using namespace cluster::fields;
  using settings = transformer_settings;
  return {
      {"transformer", "layers", "--layers", "", "N",
       "Transformer blocks (attention and feed-forward)", integer(own(&settings::layers), 1, 1024)},
      {"transformer", "width", "--width", "", "N", "Embedding width",
       integer(own(&settings::width), 1, 1 << 16)},
      {"transformer", "heads", "--heads", "", "N",
       "Attention heads; their number must divide the width",
       integer(own(&settings::heads), 1, 1 << 10)},
      {"transformer", "context", "--context", "", "N", "Context length: tokens per sample",
       integer(own(&settings::context), 1, 1 << 20)},
      {"transformer", "tied", "--tied", "--untied", "",
       "Tie the weights of the token embedding and the output layer", on_off(own(&settings::tied))},
      {"transformer", "dropout", "--dropout", "", "X", "Dropout probability",
       number(own(&settings::dropout), 0, 0.99)},
      {"transformer", "prompt", "--prompt", "", "TEXT",
       "Prompt of the sample that is generated at the end", text(own(&settings::prompt))},
      {"transformer", "sample_bytes", "--sample-bytes", "", "N",
       "Length of that sample in bytes; 0: none",
       integer(own(&settings::sample_bytes), 0, 1 << 20)},
  };
}

result<void> check_transformer(const cluster::draft& whole) {
  const auto model = whole.config.own.of<transformer_settings>();
  if (model.width % model.heads == 0) return {};
  const auto heads = std::to_string(model.heads);
  const auto width = std::to_string(model.width);
  return fail(errc::bad_config, blame(whole, "transformer.heads", "transformer.width") + heads +
                                    " heads" + source(whole, "transformer.heads", heads) +
                                    " do not divide a width of " + width +
                                    source(whole, "transformer.width", width));
}

}  // namespace troupe::apps
