// What a checkpoint's manifest says, and which text is none.

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cluster/checkpoints/checkpoint_manifest.hpp"
#include "tests/refusal.hpp"
#include "tests/written_checkpoint.hpp"

namespace {

using namespace troupe;
using namespace troupe::cluster;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;
using contents = checkpoint_manifest::contents;
using engine::checksum_kind;

const std::map<std::string, std::string> some_settings{{"model.name", "net"}};

}  // namespace

TEST_CASE("a manifest is read as it was written, and what was added later passed over") {
  const checkpoint_manifest manifest{
      .step = 40,
      .settings = some_settings,
      .files = {{"weights.stage-0.safetensors",
                 {contents::weights, {12, "ab", {{"a \"b\"", "01"}, {"c", "02"}}}}},
                {"weights.stage-1.safetensors", {contents::weights, {9, "ac", {{"b", "04"}}}}},
                {"state.stage-0.safetensors", {contents::state, {7, "cd", {{"s", "03"}}}}}},
      .weights = {"c", "b", "a \"b\""},
      .scaler = checkpoint_manifest::loss_scale{0x1p-17 / 3, 12},
      .config = {{"optimizer.lr", "0.01"}, {"pipeline.cut", "relu, fc"}}};
  CHECK_FALSE(manifest.is_of_two_files());
  CHECK_THAT(to_text(manifest), ContainsSubstring("\"troupe_checkpoint\": 4"));
  CHECK(parse_manifest(to_text(manifest)).value() == manifest);
  auto more = nlohmann::json::parse(to_text(manifest));
  more["added_later"] = {1, 2};
  more["files"]["state.stage-0.safetensors"]["added_later"] = "x";
  CHECK(parse_manifest(tests::sealed(more)).value() == manifest);
  more["config"]["optimizer.lr"] = 0.01;
  CHECK(error_of(parse_manifest(tests::sealed(more))).text ==
        "is no manifest: it says of \"config\" what is not a table of texts");
}

TEST_CASE("a manifest is written whatever bytes a setting has, and what is no UTF-8 is replaced") {
  checkpoint_manifest manifest{.step = 40,
                               .settings = some_settings,
                               .files = {{"w", {contents::weights, {12, "ab", {{"a", "01"}}}}}},
                               .weights = {"a"}};
  manifest.config = {{"train.save", "M\xfcller"}};
  const auto read = parse_manifest(to_text(manifest));
  REQUIRE(read);
  CHECK(read->config.at("train.save") == "M\xef\xbf\xbdller");
}

TEST_CASE("a manifest names the samples that could not be read, where there are any") {
  checkpoint_manifest manifest{.step = 40,
                               .settings = some_settings,
                               .files = {{"w", {contents::weights, {12, "ab", {{"a", "01"}}}}}},
                               .weights = {"a"}};
  CHECK_THAT(to_text(manifest), !ContainsSubstring("left_out"));
  manifest.left_out = {{3, 17}, {0}};
  CHECK(parse_manifest(to_text(manifest)).value() == manifest);
  for (const auto& wrong : {nlohmann::json(7), nlohmann::json::array({1.5}),
                            nlohmann::json::array({-1}), nlohmann::json::array({~0ULL})}) {
    auto changed = nlohmann::json::parse(to_text(manifest));
    changed["left_out"]["test"] = wrong;
    CHECK(error_of(parse_manifest(tests::sealed(changed))).text ==
          "is no manifest: it says of \"left_out.test\" what is not a list of whole numbers");
  }
}

TEST_CASE("a manifest names the hosts that keep its files on disks of their own") {
  const checkpoint_manifest manifest{
      .step = 40,
      .settings = some_settings,
      .files = {{"w", {contents::weights, {12, "ab", {{"a", "01"}}}, "", {"alpha", "beta"}}}},
      .weights = {"a"},
      .slices = "step-000040-ab"};
  CHECK(manifest.is_on_hosts());
  CHECK_THAT(to_text(manifest), ContainsSubstring("\"troupe_checkpoint\": 4"));
  CHECK(parse_manifest(to_text(manifest)).value() == manifest);
  const auto refused = [&](const char* key, const nlohmann::json& value) {
    auto changed = nlohmann::json::parse(to_text(manifest));
    (std::string(key) == "hosts" ? changed["files"]["w"] : changed)[key] = value;
    return error_of(parse_manifest(tests::sealed(changed))).text;
  };
  CHECK_THAT(refused("hosts", nlohmann::json::array()), ContainsSubstring("names no host with w"));
  CHECK(refused("hosts", 7) ==
        "is no manifest: it says of \"files.w.hosts\" what is not a list of texts");
  for (const auto* name : {"", "../up", ".hidden"})
    CHECK_THAT(refused("slices", name), ContainsSubstring("no name of a folder of slices"));
}

TEST_CASE("a manifest with checksums of older versions keeps their format") {
  checkpoint_manifest manifest{
      .step = 40,
      .settings = some_settings,
      .files = {{"w", {contents::weights, {12, "ab", {{"a", "01"}}, checksum_kind::blake2b}}}},
      .weights = {"a"}};
  CHECK_THAT(to_text(manifest), ContainsSubstring("\"troupe_checkpoint\": 2"));
  CHECK(parse_manifest(to_text(manifest)).value() == manifest);
  manifest.files.at("w").hosts = {"alpha"};
  manifest.slices = "step-000040-ab";
  CHECK_THAT(to_text(manifest), ContainsSubstring("\"troupe_checkpoint\": 3"));
  CHECK(parse_manifest(to_text(manifest)).value() == manifest);
  auto without = nlohmann::json::parse(to_text(manifest));
  without.erase("slices");
  CHECK(error_of(parse_manifest(tests::sealed(without))).text ==
        "is no manifest: it has no \"slices\"");
}

TEST_CASE("a manifest of two files is read, with and without checksums of tensors") {
  const checkpoint_manifest manifest{
      .step = 40,
      .settings = some_settings,
      .files = {{"weights.safetensors",
                 {contents::weights,
                  {12, "", {{"a \"b\"", "01"}, {"c", "02"}}, checksum_kind::blake2b},
                  "ab"}},
                {"weights.state.safetensors",
                 {contents::state, {0, "", {}, checksum_kind::blake2b}, "cd"}}}};
  CHECK(manifest.is_of_two_files());
  CHECK_THAT(to_text(manifest), ContainsSubstring("\"troupe_checkpoint\": 1"));
  CHECK(parse_manifest(to_text(manifest)).value() == manifest);
}

TEST_CASE("a manifest with another step, setting or file than it was written with is refused") {
  const auto text = to_text({.step = 40,
                             .settings = {{"train.seed", "1"}},
                             .files = {{"w", {contents::weights, {12, "ab", {{"a", "01"}}}}},
                                       {"s", {contents::state, {3, "cd", {{"b", "02"}}}}}},
                             .weights = {"a"},
                             .scaler = checkpoint_manifest::loss_scale{2, 1}});
  const auto differs = [&](const std::function<void(nlohmann::json&)>& change) {
    auto other = nlohmann::json::parse(text);
    change(other);
    const auto read = error_of(parse_manifest(other.dump()));
    CHECK(read.code == errc::bad_data);
    CHECK_THAT(read.text, ContainsSubstring("its own checksum differs"));
  };
  differs([](auto& all) { all["step"] = 41; });
  differs([](auto& all) { all["settings"]["train.seed"] = "2"; });
  differs([](auto& all) { all["settings"].erase("train.seed"); });
  differs([](auto& all) { all["files"].erase("s"); });
  differs([](auto& all) { all["files"]["w"]["tensors"]["a"] = "02"; });
  differs([](auto& all) { all["loss_scale"]["scale"] = 4; });
  differs([](auto& all) { all["checksum"] = 7; });
  CHECK_THAT(parse_manifest(text + std::string(9, '\0')).error().text,
             StartsWith("is no manifest: it holds bytes of value 0"));
  CHECK(parse_manifest("").error().text == "is no manifest: it is empty");
  CHECK(parse_manifest(nlohmann::json::parse(text).dump()));  // written with other spaces
}

TEST_CASE("a manifest without its checksum is refused, but for those of versions that had none") {
  const checkpoint_manifest newer{.step = 1,
                                  .settings = {},
                                  .files = {{"w", {contents::weights, {1, "ab", {{"a", "01"}}}}}},
                                  .weights = {"a"}};
  auto on_hosts = newer;
  on_hosts.files.at("w").hosts = {"alpha"};
  on_hosts.slices = "step-000001-ab";
  auto of_blake2b = newer;
  of_blake2b.files.at("w").sums.by = checksum_kind::blake2b;
  for (const auto& manifest : {newer, on_hosts, of_blake2b}) {
    auto text = nlohmann::json::parse(to_text(manifest));
    REQUIRE(text.erase("checksum") == 1);
    const auto read = error_of(parse_manifest(text.dump()));
    CHECK(read.text == "is no manifest: it has no \"checksum\"");
  }
  const checkpoint_manifest older{
      .step = 1,
      .settings = {},
      .files = {
          {"weights.safetensors", {contents::weights, {1, "", {}, checksum_kind::blake2b}, "ab"}}}};
  auto text = nlohmann::json::parse(to_text(older));
  text.erase("checksum");
  CHECK(parse_manifest(text.dump()).value() == older);
}

TEST_CASE("a manifest with a key that stands twice, or tables too deep in each other, is refused") {
  const auto text = to_text({.step = 40,
                             .settings = {{"train.seed", "1"}},
                             .files = {{"w", {contents::weights, {12, "ab", {{"a", "01"}}}}}},
                             .weights = {"a"}});
  const auto refused_with = [&text](const std::string& what, const std::string& before) {
    auto other = text;
    const auto at = other.find(before);
    REQUIRE(at != other.npos);
    return error_of(parse_manifest(other.insert(at, what))).text;
  };
  const std::string twice = "is no manifest: it has the key \"";
  CHECK(refused_with("\"step\": 41, ", "\"step\"") == twice + "step\" twice");
  CHECK(refused_with("\"a\": \"02\", ", "\"a\": ") == twice + "a\" twice");
  CHECK(refused_with("\"train.seed\": \"1\", ", "\"train.seed\"") == twice + "train.seed\" twice");
  const std::string lists(1'000'000, '['), ends(1'000'000, ']');
  CHECK(refused_with("\"junk\": " + lists + ends + ", ", "\"step\"") ==
        "is no manifest: it nests lists or tables more than 64 deep");
}

TEST_CASE("a manifest says of each weight in which one file it is, or is refused") {
  const auto refused = [](const checkpoint_manifest& manifest) {
    return error_of(parse_manifest(to_text(manifest))).text;
  };
  const checkpoint_manifest whole{.step = 1,
                                  .settings = {},
                                  .files = {{"one", {contents::weights, {1, "h", {{"a", "0"}}}}},
                                            {"two", {contents::weights, {1, "h", {{"b", "0"}}}}}},
                                  .weights = {"a", "b"}};
  REQUIRE(parse_manifest(to_text(whole)));
  auto other = whole;
  other.files.erase("two");
  CHECK_THAT(refused(other), ContainsSubstring("names no file with tensor \"b\""));
  other = whole;
  other.files["three"] = whole.files.at("one");
  CHECK_THAT(refused(other), ContainsSubstring("tensor \"a\" of three, which is in another file"));
  other = whole;
  other.weights.push_back("a");
  CHECK_THAT(refused(other), ContainsSubstring("names a weight of the model twice"));
}

TEST_CASE("what is no manifest of ours is refused by what is wrong with it") {
  const auto refused = [](const std::string& text) {
    const auto read = error_of(parse_manifest(text));
    CHECK(read.code == errc::bad_data);
    return read.text;
  };
  const std::string whole =
      to_text({.step = 1,
               .settings = {},
               .files = {{"w", {contents::weights, {1, "ab", {{"a", "01"}}}}}},
               .weights = {"a"}});
  for (std::size_t length = 0; length + 2 < whole.size(); ++length)
    CHECK_THAT(refused(whole.substr(0, length)), StartsWith("is no manifest: "));
  for (const auto& [text, why] : std::vector<std::pair<std::string, std::string>>{
           {"[]", "has no \"troupe_checkpoint\""},
           {"7", "has no \"troupe_checkpoint\""},
           {"{}", "has no \"troupe_checkpoint\""},
           {R"({"troupe_checkpoint":"1"})",
            "says of \"troupe_checkpoint\" what is not a whole number"},
           {R"({"troupe_checkpoint":1,"step":-1.5,"settings":{},"files":7})",
            "says of \"step\" what is not a whole number"},
           {R"({"troupe_checkpoint":1,"step":1,"settings":{},"files":7})",
            "says of \"files\" what is not a table"},
           {R"({"troupe_checkpoint":1,"step":1,"settings":{"a":1},"files":{}})",
            "says of \"settings\" what is not a table of texts"},
           {R"({"troupe_checkpoint":1,"step":1,"settings":{},"files":{"w":{"bytes":1}}})",
            "has no \"files.w.blake2b\""},
           {R"({"troupe_checkpoint":1,"step":1e999})", "has a number that is too large"},
           {"{\"troupe_checkpoint\":1,\n \"step\":", "ends within its JSON, at line 2, column 9"},
           {"{\"troupe_checkpoint\":1,\n \"step\":what}", "is not JSON at line 2, column 9"}})
    CHECK(refused(text) == "is no manifest: it " + why);
  check_refused(parse_manifest(R"({"troupe_checkpoint":5})"), errc::bad_config,
                "its format is number 5");
  CHECK_THAT(refused(R"({"troupe_checkpoint":1,"step":1,"settings":{},"files":{}})"),
             ContainsSubstring("names no weights.safetensors"));
  CHECK_THAT(refused(tests::sealed(nlohmann::json::parse(
                 R"({"troupe_checkpoint":2,"step":1,"settings":{},"weights":[],"files":{}})"))),
             ContainsSubstring("names no weight of a model"));
  for (const std::string name : {"../weights", "/etc/passwd", ".hidden", ""}) {
    const auto outside = nlohmann::json{{"troupe_checkpoint", 1},
                                        {"step", 1},
                                        {"settings", nlohmann::json::object()},
                                        {"files", {{name, {{"bytes", 1}, {"blake2b", "ab"}}}}}};
    CHECK_THAT(refused(outside.dump()), ContainsSubstring("no name of a checkpoint's file"));
  }
}
