// docs/config.md says what the tables say that validate.

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "apps/parameter_server/application.hpp"
#include "apps/resnet_pipeline/application.hpp"
#include "apps/transformer_pipeline/application.hpp"
#include "cluster/config/option_fields.hpp"
#include "cluster/config/reference.hpp"
#include "cluster/training/parameter_server/settings.hpp"
#include "tests/unit/cluster/config_fixture.hpp"

namespace {

using namespace troupe;
using namespace troupe::cluster;
using namespace troupe::cluster::testing;
using Catch::Matchers::ContainsSubstring;

struct net_settings {
  std::int64_t width = 3;
  bool operator==(const net_settings&) const = default;
};

const std::string page = TROUPE_SOURCE_DIR "/docs/config.md";
const std::string mark = "<!-- Generated from here on: ./dev reference rewrites it. -->\n";

std::string content_of(const std::string& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

TEST_CASE("docs/config.md lists every key that the programs take") {
  const auto text = content_of(page);
  const auto end = text.find(mark);
  REQUIRE(end != std::string::npos);
  const auto generated =
      text.substr(0, end) + mark + "\n" +
      config_reference({apps::resnet_application().info, apps::transformer_application().info,
                        with_server(apps::parameter_server_application().info)});
  if (std::getenv("TROUPE_WRITE_REFERENCE") != nullptr) std::ofstream(page) << generated;
  INFO("docs/config.md is not what the option tables say; rewrite it: ./dev reference");
  const bool is_same = content_of(page) == generated;
  CHECK(is_same);
}

TEST_CASE("the reference of programs says what they have in common once, and where they differ") {
  program_info other = trainer;
  other.name = "other";
  other.defaults.train.batch_size = 7;
  other.own = {{"net", "width", "--width", "", "N", "Width | of *it*",
                fields::integer(fields::own(&net_settings::width), 1, 64), ""}};
  const auto text = config_reference({trainer, other});
  CHECK_THAT(text, ContainsSubstring("\n| `batch_size` | `--batch-size N` | integer | `64`; other: "
                                     "`7` | 1 to 1073741824 | Samples per step |\n"));
  CHECK_THAT(text, ContainsSubstring("## `[net]`\n\nFor other.\n\n"));
  CHECK_THAT(text,
             ContainsSubstring("| `width` | `--width N` | integer | `3` | 1 to 64 | Width \\| of "
                               "\\*it\\* |\n"));
  CHECK_THAT(text, ContainsSubstring("## `[[node]]`\n"));
  CHECK(text.find("## `[train]`") == text.rfind("## `[train]`"));
  CHECK(text.find("## `[net]`") > text.find("## `[[node]]`"));
  CHECK(std::get<message_text>(*read({"--config-reference"}, other)).text ==
        config_reference({other}));
}

TEST_CASE("the reference says which program lacks a key") {
  program_info server = trainer;
  server.name = "server";
  server.has_stages = false;
  const auto text = config_reference({trainer, server});
  CHECK_THAT(text, ContainsSubstring("## `[pipeline]`\n\nFor trainer.\n"));
  CHECK_THAT(
      text, ContainsSubstring(
                "Gradient accumulation: steps whose gradients are averaged for one update. Not for "
                "server |"));
  // By which troupe check and troupe launch find it.
  CHECK_THAT(text, ContainsSubstring("## `[cluster]`\n\n| key |"));
  CHECK_THAT(text, ContainsSubstring("beside troupe or in PATH |\n"));
}
