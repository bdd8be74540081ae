#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <random>

#include "engine/partition/planner.hpp"
#include "engine/partition/profile_file.hpp"
#include "tests/refusal.hpp"
#include "tests/unit/scratch_folder.hpp"

namespace {

using namespace troupe;
using namespace troupe::engine;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::StartsWith;

saved_profile random_profile(std::mt19937& random, std::size_t layers, std::size_t sizes) {
  // From the smallest numbers that a clock gives to the largest that a file may hold.
  std::uniform_real_distribution<double> exponent(-12, 5);
  const auto some = [&] { return std::pow(10, exponent(random)); };
  saved_profile made{.model = "resnet\"50\"\n",
                     .batch_size = 48,
                     .cores = 3,
                     .threads_per_stage = 2,
                     .credits = 5,
                     .bytes_per_s = some(),
                     .optimizer_copies = 2,
                     .sample_bytes = 1e6 * some(),
                     .rates = {1e9 * some(), 1e9 * some()}};
  for (std::size_t size = 0; size < sizes; ++size) {
    model_profile each{static_cast<std::int64_t>(3 + 7 * size), {}};
    for (std::size_t i = 0; i < layers; ++i) {
      layer_cost layer{.name = "layer" + std::to_string(i) + ".ä\t\\'"};
      if (size > 0) layer = made.sizes.front().layers[i];
      layer.forward_s = some();
      layer.input_s = i == 0 ? 0 : some();
      layer.weight_s = some();
      layer.kept_bytes = 1e12 * some();
      layer.output_bytes = 4096;
      layer.loss_bytes = 1e12 * some();
      if (size == 0) {
        layer.parameter_bytes = random();
        layer.copied_bytes = 1e12 * some();
        layer.update_s = some();
        layer.macs = 1e9 * some();
      }
      each.layers.push_back(layer);
    }
    made.sizes.push_back(std::move(each));
  }
  return made;
}

const std::string small = R"(version = 5
model = "two"
batch_size = 8
cores = 2
threads_per_stage = 1
credits = 4
bytes_per_s = 5e+09
optimizer_copies = 1
sample_bytes = 12
flops_per_s = 1e+11
memory_bytes_per_s = 2e+10
samples = [2, 4]
layers = [
  {name = "a", forward_s = [1, 2], input_s = [0, 0], weight_s = [1, 2.5], kept_bytes = [8, 16], output_bytes = [4, 8], loss_bytes = [0, 0], parameter_bytes = 40, copied_bytes = 20, update_s = 0.5, macs = 10},
])";

/// `small` with one text in place of another.
std::string with(const std::string& old, const std::string& other) {
  std::string text = small;
  const auto at = text.find(old);
  REQUIRE(at != std::string::npos);
  return text.replace(at, old.size(), other);
}

std::string why(const std::string& text) {
  const auto read = parse_profile(text, "p.toml");
  if (read) return "";
  CHECK(read.error().code == errc::bad_data);
  return read.error().text;
}

}  // namespace

TEST_CASE("a profile is read back from its text with every digit") {
  std::mt19937 random(1);
  for (const std::size_t sizes : {1U, 2U})
    for (int round = 0; round < 20; ++round) {
      const auto profile = random_profile(random, 1 + random() % 5, sizes);
      const auto read = parse_profile(to_text(profile), "p.toml");
      INFO((read ? "" : read.error().text));
      REQUIRE(read);
      CHECK(*read == profile);
    }
}

TEST_CASE("a profile that a person wrote is read, integers as numbers too") {
  const auto read = parse_profile(small, "p.toml").value();
  CHECK(read.sizes[1].samples == 4);
  CHECK(read.sizes[1].layers[0].weight_s == 2.5);
  CHECK(read.sizes[0].layers[0].kept_bytes == 8);
  CHECK(read.bytes_per_s == 5e9);
  CHECK(read.rates == kernels::machine_rates{1e11, 2e10});
  CHECK(cost_model::fit(read.sizes));
}

TEST_CASE("a profile of the form before is read, and has no rates of the machine") {
  auto text = with("flops_per_s = 1e+11\nmemory_bytes_per_s = 2e+10\n", "");
  CHECK(why(text) == "p.toml:1: flops_per_s is missing");
  text.replace(0, std::string("version = 5").size(), "version = 4");
  auto with_rates = parse_profile(text, "p.toml").value();
  CHECK(with_rates.rates == kernels::machine_rates());
  with_rates.rates = {1e11, 2e10};
  CHECK(with_rates == parse_profile(small, "p.toml").value());
  CHECK(why(with("version = 5", "version = 4")) == "p.toml:10: flops_per_s: unknown key");
}

TEST_CASE("a profile that was cut off anywhere is refused with its name and a line") {
  std::mt19937 random(2);
  const auto text = to_text(random_profile(random, 3, 2));
  for (std::size_t length = 0; length + 1 < text.size(); ++length) {
    const auto said = why(text.substr(0, length));
    INFO(length << ": " << said);
    REQUIRE_THAT(said, StartsWith("p.toml:"));
  }
}

TEST_CASE("a profile with any of its lines gone is refused") {
  std::mt19937 random(3);
  const auto text = to_text(random_profile(random, 1, 1));
  std::size_t begin = 0;
  int lines = 0;
  for (std::size_t end = 0; (end = text.find('\n', begin)) != text.npos; begin = end + 1) {
    const auto line = text.substr(begin, end - begin);
    if (line.empty() || line.starts_with('#')) continue;
    ++lines;
    INFO(line);
    CHECK(why(std::string(text).erase(begin, end + 1 - begin)) != "");
  }
  CHECK(lines == 15);
}

TEST_CASE("what is wrong in a profile is said with its line and what was expected") {
  CHECK(why(with("cores = 2\n", "")) == "p.toml:1: cores is missing");
  CHECK(why(with("cores = 2", "cores = 0")) ==
        "p.toml:4: cores: expected an integer from 1 to 1048576, got integer 0");
  CHECK(why(with("cores = 2", "cores = 2.5")) ==
        "p.toml:4: cores: expected an integer from 1 to 1048576, got floating-point 2.5");
  CHECK(why(with("name", "nam")) == "p.toml:14: nam: unknown key");
  CHECK(why(small + "\nmore = 1") == "p.toml:16: more: unknown key");
  CHECK(why(with("version = 5", "version = 6\nelse = 3")) ==
        "p.toml:1: version: expected an integer from 4 to 5, got integer 6; "
        "save the profile again");
  CHECK(why(with("\"two\"", "7")) ==
        "p.toml:2: model: expected a text that is not empty, got integer 7");
  CHECK(why(with("[2, 4]", "[4, 2]")) ==
        "p.toml:12: samples: expected a list of one or two rising numbers of samples, got array");
  CHECK_THAT(why(with("[2, 4]", "[]")), StartsWith("p.toml:12: samples: expected a list"));
  CHECK_THAT(why(with("[2, 4]", "[2, 3, 4]")), StartsWith("p.toml:12: samples: expected a list"));
  CHECK(why(with("[1, 2.5]", "[1]")) ==
        "p.toml:14: weight_s: expected a list of as many numbers as samples has, got array");
  for (const std::string wrong : {"-1", "nan", "inf", "2e6", "\"1\"", "true"}) {
    INFO(wrong);
    CHECK_THAT(why(with("update_s = 0.5", "update_s = " + wrong)),
               StartsWith("p.toml:14: update_s: expected a number from 0 to 1e+06, got "));
  }
  CHECK(why(with("parameter_bytes = 40", "parameter_bytes = -40")) ==
        "p.toml:14: parameter_bytes: expected an integer from 0 to 1000000000000000000, got "
        "integer -40");
  CHECK_THAT(why(small.substr(0, small.find("layers")) + "layers = []"),
             ContainsSubstring("p.toml:13: layers: a model has at least one layer"));
  CHECK_THAT(why(small.substr(0, small.find("layers")) + "layers = [1]"),
             ContainsSubstring("p.toml:13: layers: expected a layer"));
  CHECK_THAT(why(with("credits = 4", "credits = ")), StartsWith("p.toml:6: not valid TOML: "));
}

TEST_CASE("a profile's file is written whole and replaced, or not at all") {
  const testing::scratch_folder folder;
  std::mt19937 random(4);
  const auto one = random_profile(random, 4, 2), other = random_profile(random, 2, 1);
  REQUIRE(save_profile(folder / "p.toml", one));
  CHECK(load_profile(folder / "p.toml").value() == one);
  REQUIRE(save_profile(folder / "p.toml", other));
  CHECK(load_profile(folder / "p.toml").value() == other);
  check_refused(save_profile(folder / "no" / "p.toml", one), errc::io_failed, "p.toml");
  check_refused(load_profile(folder / "q.toml"), errc::io_failed,
                "q.toml cannot be read: No such file");
  CHECK_THAT(load_profile(folder.path()).error().text, ContainsSubstring("is a directory"));
}
