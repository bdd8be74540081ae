#include "apps/transformer_pipeline/settings.hpp"

#include "cluster/config/option_fields.hpp"

namespace troupe::apps {

std::vector<cluster::option> transformer_options() {
  using namespace cluster::fields;
  using settings = transformer_settings;
  return {
      {"transformer", "layers", "--layers", "", "N", "Blocks of attention and feed-forward",
       integer(own(&settings::layers), 1, 1024), ""},
      {"transformer", "width", "--width", "", "N", "Numbers that stand for a token",
       integer(own(&settings::width), 1, 1 << 16), ""},
      {"transformer", "heads", "--heads", "", "N", "Attention heads; they divide the width",
       integer(own(&settings::heads), 1, 1 << 10), ""},
      {"transformer", "context", "--context", "", "N", "Tokens of a sample",
       integer(own(&settings::context), 1, 1 << 20), ""},
      {"transformer", "tied", "--tied", "--untied", "", "One weight embeds tokens and scores them",
       on_off(own(&settings::tied)), ""},
      {"transformer", "dropout", "--dropout", "", "X", "Share of numbers left out in training",
       number(own(&settings::dropout), 0, 0.99), ""},
      {"transformer", "prompt", "--prompt", "", "TEXT", "What the sample at the end goes on from",
       text(own(&settings::prompt)), ""},
      {"transformer", "sample_bytes", "--sample-bytes", "", "N", "Length of that sample; 0: none",
       integer(own(&settings::sample_bytes), 0, 1 << 20), ""},
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
