// The device of a run: what is refused before anything starts, and what is never loaded.

#include <stdlib.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/multiprocess/program.hpp"
#include "tests/scratch_folder.hpp"

namespace {

namespace fs = std::filesystem;
using Catch::Matchers::ContainsSubstring;
using troupe::tests::program_outcome;
using troupe::tests::run_other;
using troupe::tests::scratch_folder;

constexpr int refused = 2;

/// A machine with NVIDIA's driver of tests and these cards.
class machine_with_cards {
 public:
  explicit machine_with_cards(const std::string& cards) {
    ::setenv("LD_LIBRARY_PATH", fs::path(TROUPE_FAKE_CUDA).parent_path().c_str(), 1);
    ::setenv("FAKE_CUDA_CARDS", cards.c_str(), 1);
    ::setenv("FAKE_CUDA_LOADED", mark().c_str(), 1);
  }
  [[nodiscard]] bool loaded() const { return fs::exists(mark()); }

 private:
  [[nodiscard]] fs::path mark() const { return folder_ / "loaded"; }

  scratch_folder folder_;
};

/// `first`: a command instead of training.
program_outcome train_on(const std::string& device, const std::vector<std::string>& more = {},
                         const std::string& first = "") {
  std::vector<std::string> words{"--device",        device,
                                 "--model",         "resnet18",
                                 "--data",          "synthetic:3x32x32:10:8",
                                 "--image-size",    "32",
                                 "--batch-size",    "4",
                                 "--micro-batches", "2",
                                 "--steps",         "1",
                                 "--no-eval",       "--no-progress"};
  words.insert(words.end(), more.begin(), more.end());
  if (!first.empty()) words.insert(words.begin(), first);
  return run_other(TROUPE_RESNET, words);
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

const std::string automatic_on_cpu =
    "device = \"auto\": stages compute on the CPU, for no GPU can be used: ";

TEST_CASE("a run on the CPU loads no library of CUDA's") {
  const machine_with_cards here("NVIDIA H200,9,0,150323855360");
  const auto outcome = train_on("cpu");
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  CHECK_FALSE(here.loaded());
}

TEST_CASE("an automatic device is the CPU where no GPU can be used, and one line says why") {
  const std::string cards = "NVIDIA H200,9,0,150323855360";
  const machine_with_cards here(cards);
  for (const std::string in : {"processes", "threads"}) {
    const auto outcome = train_on("auto", {"--stages-in", in});
    INFO(outcome.err);
    CHECK(outcome.code == 0);
    CHECK(here.loaded());
    CHECK(count_of(outcome.err, automatic_on_cpu) == 1);
    CHECK_THAT(outcome.err, ContainsSubstring("LibTorch's CUDA library cannot be loaded: "));
  }
  const auto shown = train_on("auto", {}, "--check");
  INFO(shown.out << shown.err);
  CHECK(shown.code == 0);
  CHECK_THAT(shown.out, ContainsSubstring("this machine  cpu     1 "));
  CHECK_THAT(shown.out, ContainsSubstring(automatic_on_cpu));
}

TEST_CASE("an automatic device is the CPU on a machine without a GPU") {
  const machine_with_cards here("");
  const auto outcome = train_on("auto");
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  CHECK_THAT(outcome.err, ContainsSubstring(automatic_on_cpu + "the NVIDIA driver finds no GPU"));
}

TEST_CASE("a GPU that is there is refused where LibTorch's CUDA libraries are not") {
  const machine_with_cards here("NVIDIA H200,9,0,150323855360");
  const auto outcome = train_on("cuda:0");
  CHECK(outcome.code == refused);
  CHECK(here.loaded());
  CHECK_THAT(outcome.err, ContainsSubstring(
                              "--device: \"cuda:0\": LibTorch's CUDA library cannot be loaded: ") &&
                              ContainsSubstring("; pip install nvidia-"));
}

TEST_CASE("a GPU that is not there is refused with those that are") {
  const machine_with_cards here("NVIDIA H200,9,0,150323855360;NVIDIA H200,9,0,150323855360");
  const auto outcome = train_on("cuda:2");
  CHECK(outcome.code == refused);
  CHECK_THAT(outcome.err,
             ContainsSubstring("--device: \"cuda:2\": there is no such GPU on this machine, which "
                               "has cuda:0 to cuda:1; see `troupe devices`"));
}

TEST_CASE("a machine without a driver that starts refuses GPUs with the reason") {
  const machine_with_cards here("");
  ::setenv("FAKE_CUDA_INIT", "100", 1);
  const auto outcome = train_on("cuda:0");
  ::unsetenv("FAKE_CUDA_INIT");
  CHECK(outcome.code == refused);
  CHECK_THAT(outcome.err,
             ContainsSubstring("--device: \"cuda:0\": the NVIDIA driver does not start: no "
                               "CUDA-capable device is detected; see whether nvidia-smi works"));
}

}  // namespace
