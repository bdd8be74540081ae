// What a run checks and predicts of itself, in stage processes: --verify, --partition auto,
// --save-profile, --recompute, --on-nan.

#include <ATen/ops/arange.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "engine/state/safetensors.hpp"
#include "tests/multiprocess/program.hpp"
#include "tests/words.hpp"

namespace {

using namespace troupe;
using namespace troupe::tests;
using Catch::Matchers::ContainsSubstring;
using tests::operator+;

const words tiny_run{"--model",      "resnet18", "--data",  "synthetic:3x64x64:10:16",
                     "--batch-size", "8",        "--steps", "2",
                     "--no-eval"};
const words small_run = tiny_run + words{"--micro-batches", "3", "--stages", "2"};

/// The same run of the small network (small_pipeline.cpp).
words of_small_network(words run) {
  std::ranges::replace(run, std::string("resnet18"), std::string("small"));
  return run;
}

std::size_t times_in(const std::string& text, const std::string& word) {
  std::size_t found = 0;
  for (auto at = text.find(word); at != text.npos; at = text.find(word, at + 1)) ++found;
  return found;
}

std::vector<nlohmann::json> read_lines(const std::filesystem::path& file) {
  std::vector<nlohmann::json> lines;
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

/// Trains on images, of which some may be NaN, in steps of four samples.
tests::program_outcome skip_bad_steps(const std::filesystem::path& data, const at::Tensor& images,
                                      const words& more) {
  REQUIRE(engine::save_safetensors(
      data, {{"images", images}, {"labels", at::arange(images.size(0), at::kLong).remainder(10)}}));
  return run_other(TROUPE_SMALL,
                   words{"--model", "small", "--data", "safetensors:" + data.string(),
                         "--batch-size", "4", "--micro-batches", "2", "--stages", "2", "--no-eval",
                         "--no-shuffle", "--classes", "10", "--on-nan", "skip"} +
                       more);
}

}  // namespace

TEST_CASE("Verify compares every gradient and buffer, passes, and changes nothing", "[untimed]") {
  const scratch_folder folder;
  const auto train = [&](const words& more, const std::string& name) {
    const auto outcome = run_other(
        TROUPE_SMALL, of_small_network(small_run) + more + words{"--save", folder / name});
    REQUIRE(outcome.code == 0);
    return std::pair(outcome, engine::load_safetensors(folder / name).value());
  };
  const auto [plain, weights] = train({}, "plain");
  for (const auto& way :
       {words{"--link", "shm"}, words{"--link", "tcp", "--recompute", "layer2"}}) {
    const auto [verified, same] = train(way + words{"--verify"}, "verified");
    CHECK(times_in(verified.err, "  pass  gradient of ") == 32);
    CHECK(times_in(verified.err, "  pass  buffer ") == 30);
    CHECK_THAT(verified.err,
               ContainsSubstring("the loss: passed") && ContainsSubstring("every bit"));
    REQUIRE(same.size() == weights.size());
    for (std::size_t i = 0; i < same.size(); ++i) {
      INFO(same[i].name);
      CHECK(same[i].tensor.equal(weights[i].tensor));
    }
  }
}

TEST_CASE("Verify holds in bf16 and channels last, and with stages in threads", "[untimed]") {
  const words bf16{"--verify", "--precision", "bf16", "--memory-format", "channels_last"};
  CHECK(run_program(small_run + bf16).code == 0);
  const words in_threads{"--verify", "--stages-in", "threads"};
  CHECK(run_other(TROUPE_SMALL, of_small_network(small_run) + in_threads).code == 0);
}

TEST_CASE("Verify fails when a stage computes something else, and says what", "[untimed]") {
  const auto outcome = run_other(TROUPE_PERTURBED, small_run + words{"--verify"});
  CHECK(outcome.code == 1);
  CHECK_THAT(outcome.err, ContainsSubstring("  FAIL  gradient of fc.weight"));
  CHECK_THAT(outcome.err, ContainsSubstring("  FAIL  loss"));
  CHECK_THAT(outcome.last_line(), ContainsSubstring("does not compute what one process does"));
  const auto tolerant =
      run_other(TROUPE_PERTURBED, small_run + words{"--verify", "--verify-tolerance", "0.05"});
  CHECK(tolerant.code == 0);
  CHECK(run_other(TROUPE_PERTURBED, small_run).code == 0);  // nobody looked
}

TEST_CASE("An automatic partition predicts the run and reports how far it was off", "[untimed]") {
  const words open =
      tiny_run + words{"--stages", "3", "--partition", "auto", "--micro-batches", "auto"};
  const auto chosen = run_program(open);
  CHECK(chosen.code == 0);
  CHECK_THAT(chosen.err, ContainsSubstring("predicted: ") && ContainsSubstring("stage-2  ") &&
                             ContainsSubstring("memory ") &&
                             ContainsSubstring("s a step and measured"));
  const auto capped = run_program(open + words{"--memory-mib", "1"});
  CHECK(capped.code == 2);
  CHECK_THAT(capped.err,
             ContainsSubstring("1 MiB") && ContainsSubstring("least cap that would do"));
}

TEST_CASE("An automatic partition cuts for schedules of several slices a stage too", "[untimed]") {
  for (const std::string schedule : {"zb-v", "interleaved-1f1b"}) {
    const auto outcome = run_program(
        tiny_run + words{"--stages", "2", "--schedule", schedule, "--partition", "auto"});
    CHECK(outcome.code == 0);
    CHECK_THAT(outcome.err, ContainsSubstring("stage-0  conv1") && ContainsSubstring(", layer") &&
                                ContainsSubstring("s a step and measured"));
  }
}

TEST_CASE("troupe plan predicts from a saved profile what the run was told, and more",
          "[untimed]") {
  const scratch_folder folder;
  const std::string file = folder / "profile.toml";
  const auto plan = [&](const words& more) {
    return run_other(TROUPE_COMMAND, words{"plan", "--profile", file} + more);
  };
  const auto run = run_program(small_run + words{"--partition", "auto", "--save-profile", file});
  REQUIRE(run.code == 0);
  const auto same = plan({"--stages", "2", "--micro-batches", "3", "--svg", folder / "chart.svg"});
  REQUIRE(same.code == 0);
  int told = 0;
  std::istringstream lines(run.err);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("predicted: ") && !line.starts_with("  stage-")) continue;
    ++told;
    CHECK_THAT(same.out, ContainsSubstring(line));
  }
  CHECK(told == 3);
  CHECK_THAT(same.out, ContainsSubstring("2 replicas of one stage instead: ") &&
                           ContainsSubstring(" longer\nto train on replicas: --replicas 2 "));
  CHECK_THAT(same.out, ContainsSubstring("0 |F0"));
  CHECK_THAT(
      bytes_of(folder / "chart.svg"),
      ContainsSubstring("1f1b, 2 stages, 3 micro-batches: ") && ContainsSubstring(" s, bubble "));

  CHECK_THAT(same.out, !ContainsSubstring("a stage at most"));
  const auto layers = plan({"--stages", "2", "--micro-batches", "3", "--layers"});
  CHECK(layers.code == 0);
  for (const std::string line : {"conv1 ", "fc ", "all layers ", "a stage at most ", "idle "})
    CHECK_THAT(layers.out, ContainsSubstring("\n" + line));

  const auto other = plan({"--stages", "3", "--schedule", "zb-v", "--micro-batches", "auto",
                           "--batch-size", "64", "--cores", "3", "--link-gbytes", "1"});
  CHECK(other.code == 0);
  CHECK_THAT(other.out, ContainsSubstring("64 samples a step") && ContainsSubstring("stage-2  "));
  const auto far = plan({"--partition", "even", "--network-gbits", "1", "--network-ms", "20000"});
  CHECK(far.code == 0);
  CHECK_THAT(far.out, ContainsSubstring(" s a step, bubble 9"));
  const auto capped = plan({"--memory-mib", "1"});
  CHECK(capped.code == 2);
  CHECK_THAT(capped.err, ContainsSubstring("least cap that would do"));
  const auto of_gpu = plan({"--device-memory-mib", "1"});
  CHECK(of_gpu.code == 2);
  CHECK_THAT(of_gpu.err, ContainsSubstring("least cap that would do"));
  const auto roomy = plan({"--device-memory-mib", "4000"});
  CHECK(roomy.code == 0);
  CHECK_THAT(roomy.out,
             ContainsSubstring(" MiB of a GPU and ") && ContainsSubstring(" MiB each, or "));
  CHECK(plan({"--device-memory-mib", "4000", "--memory-mib", "4000"}).code != 0);
}

TEST_CASE("troupe plan cuts a saved profile as the run does, and refuses what does not go with it",
          "[untimed]") {
  const scratch_folder folder;
  const std::string file = folder / "profile.toml";
  const auto plan = [&](const words& more) {
    return run_other(TROUPE_COMMAND, words{"plan", "--profile", file} + more);
  };
  const auto only =
      run_program(small_run + words{"--profile-only", "--predict", "--save-profile", file});
  CHECK(only.code == 0);
  CHECK_THAT(only.err, !ContainsSubstring("step 1/"));
  const auto even = plan({"--partition", "even", "--micro-batches", "3"});
  CHECK(even.code == 0);
  const auto first = even.out.find("  stage-0  ");
  REQUIRE(first != std::string::npos);
  CHECK_THAT(only.err,
             ContainsSubstring(even.out.substr(first, even.out.find(':', first) - first)));

  CHECK(plan({"--partition", "even", "--schedule", "interleaved-1f1b"}).code == 0);
  for (const words& wrong :
       {words{"--partition", "even", "--memory-mib", "9"}, words{"--micro-batches", "0"},
        words{"--micro-batches", "9"}, words{"--costs", "1,1,1"}, words{"--check", file}}) {
    const auto refused = plan(wrong);
    CHECK(refused.code == 2);
    CHECK_THAT(refused.err, ContainsSubstring(wrong[0]) || ContainsSubstring("9 micro-batches") ||
                                ContainsSubstring("--memory-mib"));
  }
  const auto open = run_other(TROUPE_COMMAND, {"plan", "--micro-batches", "auto"});
  CHECK(open.code == 2);
  CHECK_THAT(open.err, ContainsSubstring("--profile"));

  std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
  const auto cut_off = plan({});
  CHECK(cut_off.code == 2);
  CHECK_THAT(cut_off.err, ContainsSubstring(file + ":") && ContainsSubstring("not valid TOML"));
}

TEST_CASE("Recomputed layers lower the peak memory of their stage", "[untimed]") {
  const scratch_folder folder;
  const auto peaks = [&](const words& more) {
    const auto outcome = run_program(
        words{"--model", "resnet18", "--data", "synthetic:3x96x96:10:32", "--batch-size", "32",
              "--steps", "1", "--micro-batches", "8", "--stages", "2", "--cut", "layer4",
              "--schedule", "gpipe", "--no-eval", "--json", folder / "steps.jsonl"} +
        more);
    REQUIRE(outcome.code == 0);
    const auto stage = read_lines(folder / "steps.jsonl").back()["stages"][0];
    return std::pair(stage["peak_memory_bytes"].get<double>(),
                     stage["peak_context_bytes"].get<double>());
  };
  const auto [plain, plain_contexts] = peaks({});
  const auto [again, contexts] = peaks({"--recompute", "bn1,relu,maxpool,layer1,layer2"});
  INFO(plain / (1 << 20) << " MiB, recomputed " << again / (1 << 20) << " MiB");
  CHECK(contexts < 0.5 * plain_contexts);
  CHECK(again < plain);  // by how much is also the allocator's choice
  const auto refused = run_program(small_run + words{"--recompute", "layer9"});
  CHECK(refused.code == 2);
  CHECK_THAT(refused.err, ContainsSubstring("'layer9'") && ContainsSubstring("layer4.1"));
}

TEST_CASE("A step that is not finite stops the run before it is applied, or is left out",
          "[untimed]") {
  const scratch_folder folder;
  auto images = at::randn({8, 3, 32, 32});
  images[5].fill_(std::numeric_limits<float>::quiet_NaN());  // of the second step of two
  REQUIRE(engine::save_safetensors(
      folder / "data.safetensors",
      {{"images", images}, {"labels", at::randint(0, 10, {8}, at::kLong)}}));
  const auto run = [&](const words& more) {
    return run_other(TROUPE_SMALL, words{"--model", "small", "--data",
                                         "safetensors:" + (folder / "data.safetensors").string(),
                                         "--batch-size", "4", "--micro-batches", "2", "--stages",
                                         "2", "--no-eval", "--no-shuffle", "--classes", "10"} +
                                       more);
  };
  const auto stopped = run({"--epochs", "1"});
  CHECK(stopped.code == 1);
  CHECK_THAT(stopped.last_line(), ContainsSubstring("stage-1: step 2: the loss of micro-batch 0") &&
                                      ContainsSubstring("NaN"));

  const auto weights = [&](const words& more) {
    const auto outcome = run(more + words{"--save", folder / "weights", "--on-nan", "skip"});
    REQUIRE(outcome.code == 0);
    return std::pair(outcome.err, engine::load_safetensors(folder / "weights").value());
  };
  const auto [quiet, one] = weights({"--steps", "1"});
  CHECK_THAT(quiet, !ContainsSubstring("skipped"));
  const auto [told, two] = weights({"--steps", "2"});
  CHECK_THAT(told, ContainsSubstring("skipped step 2 on stage-1: the loss of micro-batch 0"));
  for (std::size_t i = 0; i < one.size(); ++i) {
    INFO(one[i].name);
    CHECK(one[i].tensor.equal(two[i].tensor));  // weights and running statistics
  }
  const auto [more, three] = weights({"--steps", "3"});
  CHECK(times_in(more, "skipped") == 1);
  CHECK_FALSE(three.front().tensor.equal(two.front().tensor));
}

TEST_CASE("A resumed run of which no step was applied saves what it has resumed from") {
  const scratch_folder folder;
  auto images = at::randn({8, 3, 32, 32});
  images[5].fill_(std::numeric_limits<float>::quiet_NaN());  // of the second step of two
  const auto train = [&](const words& more, const char* file) {
    const auto outcome = skip_bad_steps(
        folder / "data.safetensors", images,
        more + words{"--checkpoint-dir", folder / "checkpoints", "--save", folder / file});
    REQUIRE(outcome.code == 0);
    return engine::load_safetensors(folder / file).value();
  };
  const auto first = train({"--steps", "1"}, "first");
  const auto resumed = train({"--steps", "2", "--resume", "latest"}, "resumed");
  REQUIRE(first.size() == resumed.size());
  for (std::size_t i = 0; i < first.size(); ++i) {
    INFO(first[i].name);
    CHECK(first[i].tensor.equal(resumed[i].tensor));
  }
}

TEST_CASE("An update of which one step is left out changes no weight", "[untimed]") {
  const scratch_folder folder;
  auto images = at::randn({12, 3, 32, 32});
  images[9].fill_(std::numeric_limits<float>::quiet_NaN());  // of the third step of three
  const auto train = [&](const words& more) {
    const auto outcome = skip_bad_steps(folder / "data.safetensors", images,
                                        more + words{"--accumulate", "2", "--save", folder / "w"});
    REQUIRE(outcome.code == 0);
    return std::pair(outcome.err, engine::load_safetensors(folder / "w").value());
  };
  const auto [quiet, one] = train({"--steps", "2"});
  CHECK(times_in(quiet, "skipped") == 0);
  const auto [told, same] = train({"--steps", "4"});  // the fourth was good, and is left out too
  CHECK(times_in(told, "skipped") == 1);
  const auto [twice, still] = train({"--steps", "6"});
  CHECK(times_in(twice, "skipped") == 2);
  const auto is_trained = [](const engine::named_tensor& each) {
    return each.name.find("running_") == std::string::npos &&
           each.name.find("num_batches") == std::string::npos;
  };
  for (std::size_t i = 0; i < one.size(); ++i) {
    INFO(one[i].name);
    if (is_trained(one[i])) CHECK(one[i].tensor.equal(same[i].tensor));
    if (is_trained(one[i])) CHECK(one[i].tensor.equal(still[i].tensor));
  }
}

TEST_CASE("A run of which no step was applied ends as a failure, and saves nothing", "[untimed]") {
  const scratch_folder folder;
  auto images = at::randn({8, 3, 32, 32});
  images[5].fill_(std::numeric_limits<float>::quiet_NaN());  // of the second step of two
  const auto pairs =
      skip_bad_steps(folder / "data.safetensors", images,
                     {"--steps", "4", "--accumulate", "2", "--save", folder / "w", "--save-state"});
  images.fill_(std::numeric_limits<float>::quiet_NaN());
  const auto all = skip_bad_steps(folder / "data.safetensors", images,
                                  {"--steps", "2", "--save", folder / "w", "--save-state"});
  for (const auto& [outcome, steps] : {std::pair(pairs, "4 steps"), std::pair(all, "2 steps")}) {
    CHECK(outcome.code == 1);
    CHECK_THAT(outcome.last_line(),
               ContainsSubstring(std::string("nothing was trained, and nothing is saved: not one "
                                             "of ") +
                                 steps + " was applied") &&
                   ContainsSubstring("stage-1: the loss of micro-batch 0"));
  }
  CHECK_FALSE(std::filesystem::exists(folder / "w"));
  CHECK_FALSE(std::filesystem::exists(folder / "w.state.safetensors"));
}

TEST_CASE("Data of one class train with a warning", "[untimed]") {
  const auto outcome = run_program({"--model", "resnet18", "--data", "synthetic:3x32x32:1:8",
                                    "--batch-size", "8", "--steps", "1", "--no-eval"});
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring("synthetic:3x32x32:1:8: all samples are of one class"));
}

TEST_CASE("Training in f16 learns, verifies, and tells its loss scale, which goes on when resumed",
          "[untimed]") {
  const scratch_folder folder;
  const auto train = [&](const words& more) {
    const auto outcome = run_other(
        TROUPE_SMALL, words{"--model", "small", "--data", "synthetic:3x12x12:10:8", "--batch-size",
                            "8", "--micro-batches", "2", "--stages", "2", "--no-eval",
                            "--no-shuffle", "--precision", "fp16", "--loss-scale-interval", "2",
                            "--save-state", "--json", folder / "steps.jsonl"} +
                          more);
    REQUIRE(outcome.code == 0);
    CHECK_THAT(outcome.err, ContainsSubstring(", scale "));
    return read_lines(folder / "steps.jsonl");
  };
  const auto saved = [&](const char* name) {
    return engine::load_safetensors(folder / name).value();
  };
  const auto straight = train({"--steps", "10", "--verify", "--save", folder / "straight"});
  REQUIRE(straight.size() == 10);
  CHECK(straight.back()["loss"].get<double>() < 0.8 * straight.front()["loss"].get<double>());
  CHECK(straight.front()["loss_scale"] == 65536);
  std::vector<double> scales;
  for (const auto& step : straight) scales.push_back(step["loss_scale"].get<double>());
  CHECK(scales[4] > scales[0]);
  CHECK_FALSE(std::ranges::is_sorted(scales));  // larger and larger until a gradient overflows
  train({"--steps", "5", "--save", folder / "half"});  // between two steps that double the scale
  const auto rest = train({"--steps", "5", "--init", folder / "half", "--save", folder / "whole"});
  REQUIRE(rest.size() == 5);
  for (std::size_t i = 0; i < rest.size(); ++i) {
    CHECK(rest[i]["loss"] == straight[5 + i]["loss"]);
    CHECK(rest[i]["loss_scale"] == straight[5 + i]["loss_scale"]);
  }
  const auto one = saved("straight"), other = saved("whole");
  REQUIRE(one.size() == other.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    INFO(one[i].name);
    CHECK(one[i].name == other[i].name);
    CHECK(one[i].tensor.equal(other[i].tensor));
  }
}

TEST_CASE("A tied weight's gradient is one process's where stages have several chunks",
          "[untimed]") {
  for (const std::string schedule : {"interleaved-1f1b", "zb-v"}) {
    INFO(schedule);
    const auto outcome = run_other(
        TROUPE_TRANSFORMER,
        split_words("--layers 2 --width 32 --heads 2 --context 32 --batch-size 16 --steps 1 "
                    "--stages 2 --dropout 0.1 --no-eval --sample-bytes 0 --verify --schedule") +
            words{schedule});
    CHECK(outcome.code == 0);
    CHECK_THAT(outcome.err, ContainsSubstring("pass  gradient of embed.tokens") &&
                                ContainsSubstring("pass  gradient of head.weight"));
  }
}

TEST_CASE("A decoder learns text in stage processes, and goes on from a prompt", "[untimed]") {
  const words run = split_words(
                        "--layers 2 --width 32 --heads 2 --context 32 --batch-size 16 --lr 0.2 "
                        "--steps 40 --eval-every 20 --link shm --verify") +
                    words{"--prompt", "Die Lizenz f\xc3\xbcr"} + split_words("--sample-bytes 24");
  const auto outcome = run_other(TROUPE_TRANSFORMER, run);
  REQUIRE(outcome.code == 0);
  const auto perplexity = [&](const std::string& step) {
    const auto at = outcome.err.find("perplexity after step " + step + ": ");
    REQUIRE(at != std::string::npos);
    return std::stod(outcome.err.substr(outcome.err.find(": ", at) + 2));
  };
  CHECK(perplexity("20") < 100);
  CHECK(perplexity("40") < perplexity("20"));
  CHECK_THAT(outcome.err, ContainsSubstring("a sample:\nDie Lizenz f\xc3\xbcr"));
  CHECK_THAT(outcome.err, ContainsSubstring(" samples/s, "));
  CHECK_THAT(outcome.err, ContainsSubstring("pass  gradient of head.weight"));

  const auto images = run_other(TROUPE_TRANSFORMER, {"--data", "synthetic:3x32x32:10:8"});
  CHECK(images.code == 2);
  CHECK_THAT(images.err, ContainsSubstring("text"));
  const auto text = run_program({"--data", "text"});
  CHECK(text.code == 2);
  CHECK_THAT(text.err, ContainsSubstring("images"));
  for (const std::string group : {"head.* lr_scale=0.5", "embed.tokens weight_decay=0"}) {
    const auto parted = run_other(TROUPE_TRANSFORMER, {"--groups", group});
    CHECK(parted.code == 2);
    CHECK_THAT(parted.err,
               ContainsSubstring("--groups: 'embed.tokens' and 'head.weight' are one weight"));
  }
  const auto heads = run_other(TROUPE_TRANSFORMER, {"--heads", "3"});
  CHECK(heads.code == 2);
  CHECK_THAT(heads.err, ContainsSubstring("3 heads"));
}
