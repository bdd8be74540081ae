// What is said of GPUs, drivers and libraries, and what each is asked.

#include <stdlib.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "engine/device/device_choice.hpp"
#include "engine/device/device_findings_core.hpp"
#include "engine/device/driver.hpp"
#include "engine/device/open_device.hpp"
#include "engine/device/torch_cuda.hpp"
#include "tests/scratch_folder.hpp"

namespace {

using namespace troupe::engine;
using Catch::Matchers::ContainsSubstring;

card card_of(int major, int minor) {
  return {.name = "H200", .memory_bytes = 1, .major = major, .minor = minor};
}

driver_facts driver_of(int cuda, std::vector<card> cards) {
  driver_facts facts;
  facts.version = "580.65.06";
  facts.cuda = cuda;
  facts.cards = std::move(cards);
  return facts;
}

TEST_CASE("a device is the CPU, a GPU or whatever is best") {
  using kind = device_choice::kind;
  CHECK(parse_device("cpu") == device_choice{});
  CHECK(parse_device("auto") == device_choice{.what = kind::automatic});
  CHECK(parse_device("cuda:12") == device_choice{.what = kind::cuda, .index = 12});
  for (const char* const wrong :
       {"", "cuda", "cuda:", "cuda:-1", "cuda:1x", "cuda: 1", "gpu", "cuda:99999999999"})
    CHECK_FALSE(parse_device(wrong));
}

TEST_CASE("what speaks against training on a GPU begins with what is missing first") {
  CHECK_THAT(reason_against_training_on(0, driver_of(13000, {})), ContainsSubstring("no GPU"));
  const auto one = driver_of(13000, {card_of(9, 0)});
  CHECK(reason_against_training_on(1, one) ==
        "there is no such GPU on this machine, which has cuda:0 alone; see `troupe devices`");
  CHECK(reason_against_training_on(0, one).empty());
  auto none = one;
  none.problem = "there is no NVIDIA driver";
  CHECK(reason_against_training_on(0, none) == none.problem);
}

TEST_CASE("an automatic device is a GPU for each stage, a shared one, or the CPU with the reason") {
  const usable_cards three{.indices = {0, 2, 3}};
  CHECK(assign_device(three, 0, 3) == assigned_device{.device = "cuda:0"});
  CHECK(assign_device(three, 2, 3) == assigned_device{.device = "cuda:3"});
  CHECK(
      assign_device(three, 1, 5) ==
      assigned_device{"cuda:2",
                      "device = \"auto\": 5 stages share 3 GPUs, for there are no more: use fewer "
                      "stages, or more machines"});
  CHECK(assign_device(three, 4, 5).device == "cuda:2");
  CHECK_THAT(assign_device({.indices = {1}}, 0, 2).said,
             ContainsSubstring("2 stages share 1 GPU,"));
  CHECK(assign_device({.why_none = "there is no NVIDIA driver"}, 1, 2) ==
        assigned_device{"cpu",
                        "device = \"auto\": stages compute on the CPU, for no GPU can be used: "
                        "there is no NVIDIA driver"});
}

TEST_CASE("the GPUs that can be used are those that LibTorch has code for") {
  torch_cuda_facts torch;
  torch.architectures = {{.version = 90}};
  auto driver = driver_of(13000, {card_of(9, 0), card_of(6, 1), card_of(9, 0)});
  for (int i = 0; i < 3; ++i) driver.cards[i].index = i;
  CHECK(usable_among(driver, {}, torch) == usable_cards{.indices = {0, 2}});
  CHECK(usable_among(driver, "the driver is too old", torch) ==
        usable_cards{.why_none = "the driver is too old"});
  driver.cards = {driver.cards[1]};
  const auto old = usable_among(driver, {}, torch);
  CHECK(old.indices.empty());
  CHECK_THAT(old.why_none, ContainsSubstring("cuda:1: this LibTorch has no code for its "
                                             "architecture 6.1"));
}

TEST_CASE("architectures are read out of LibTorch's own words") {
  const auto found = architectures_in(
      "NVCC architecture flags: -gencode;arch=compute_75,code=sm_75;-gencode;"
      "arch=compute_90a,code=sm_90a;-gencode;arch=compute_120,code=compute_120;"
      "-gencode;arch=compute_75,code=sm_75");
  CHECK(found == std::vector<built_architecture>{{.version = 75},
                                                 {.version = 90, .exact = true},
                                                 {.version = 120, .portable = true}});
  CHECK(architectures_in("CuDNN 9.19, code=none").empty());
}

TEST_CASE("a GPU runs code of its own generation, and portable code of older ones") {
  torch_cuda_facts torch;
  torch.architectures = {{.version = 75}, {.version = 80}, {.version = 90, .exact = true}};
  CHECK(reason_against(card_of(7, 5), torch).empty());
  CHECK(reason_against(card_of(8, 6), torch).empty());
  CHECK(reason_against(card_of(9, 0), torch).empty());
  CHECK(reason_against(card_of(7, 0), torch) ==
        "this LibTorch has no code for its architecture 7.0, but for 7.5, 8.0, 9.0; use another "
        "build of LibTorch, or device = \"cpu\"");
  CHECK_FALSE(reason_against(card_of(10, 0), torch).empty());
  torch.architectures.push_back({.version = 90, .portable = true});
  CHECK(reason_against(card_of(10, 0), torch).empty());
  CHECK_FALSE(reason_against(card_of(7, 0), torch).empty());
  torch.architectures.clear();  // not known: LibTorch itself is to say
  CHECK(reason_against(card_of(7, 0), torch).empty());
}

TEST_CASE("a driver is too old for a newer generation of CUDA only") {
  const auto cards = std::vector<card>{card_of(9, 0)};
  CHECK(reason_against_all(driver_of(13000, cards), 13000).empty());
  CHECK(reason_against_all(driver_of(12020, cards), 12080).empty());
  CHECK(reason_against_all(driver_of(12040, cards), 13000) ==
        "the NVIDIA driver 580.65.06 is too old: it runs CUDA 12.4, and LibTorch was built with "
        "13.0; update the driver");
}

TEST_CASE("a device of a run that is too old, or whose driver is, is refused as it is listed") {
  torch_cuda_facts torch;
  torch.architectures = {{.version = 75}, {.version = 90}};
  const auto both = driver_of(13000, {card_of(9, 0), card_of(6, 1)});
  CHECK(reason_against_device(0, both, {}, torch).empty());
  CHECK(
      reason_against_device(1, both, {}, torch) ==
      "this LibTorch has no code for its architecture 6.1, but for 7.5, 9.0; use another build of "
      "LibTorch, or device = \"cpu\"");
  CHECK_THAT(reason_against_device(2, both, {}, torch), ContainsSubstring("no such GPU"));
  const auto old = driver_of(12040, {card_of(9, 0)});
  const auto why = reason_against_all(old, 13000);
  CHECK_THAT(why, ContainsSubstring("is too old"));
  CHECK(reason_against_device(0, old, why, {}) == why);
  CHECK_THAT(reason_against_device(1, old, why, {}), ContainsSubstring("no such GPU"));
}

TEST_CASE("GPUs that are hidden are told from GPUs that are not there") {
  auto facts = driver_of(13000, {});
  CHECK(reason_against_all(facts, 13000) == "the NVIDIA driver finds no GPU");
  facts.machine_cards = 8;
  CHECK(reason_against_all(facts, 13000) ==
        "CUDA_VISIBLE_DEVICES hides all 8 GPUs of this machine; unset it");
}

TEST_CASE("a LibTorch without CUDA says so") {
  CHECK_THAT(reason_against_all(driver_of(13000, {card_of(9, 0)}), 0),
             ContainsSubstring("built without CUDA"));
  const troupe::tests::scratch_folder torch;
  std::ofstream(torch / "version.py") << "__version__ = '2.11.0'\ncuda: Optional[str] = None\n";
  CHECK(cuda_of_torch(torch.path()) == 0);
  std::ofstream(torch / "version.py") << "debug = False\ncuda: Optional[str] = '12.8'\n";
  CHECK(cuda_of_torch(torch.path()) == 12080);
  CHECK(cuda_of_torch("/nowhere") == 0);
}

TEST_CASE("a machine without a driver says what to do") {
  const auto facts = ask_driver("libcuda-that-nobody-has.so.1", "libnvml-that-nobody-has.so.1");
  CHECK(facts.problem ==
        "there is no NVIDIA driver (libcuda-that-nobody-has.so.1: cannot open shared object file: "
        "No such file or directory); install NVIDIA's driver, or use device = \"cpu\"");
  CHECK(facts.machine_cards == -1);
  CHECK(reason_against_all(facts, 13000) == facts.problem);
}

TEST_CASE("a driver that lacks a function is half installed or too old") {
  const auto facts = ask_driver(TROUPE_FAKE_NVML, TROUPE_FAKE_NVML);
  CHECK_THAT(facts.problem, ContainsSubstring("has no cuInit"));
}

TEST_CASE("a driver tells of its GPUs") {
  ::setenv("FAKE_CUDA_CARDS", "NVIDIA H200,9,0,150754820096;GTX 1080,6,1,8589934592", 1);
  ::setenv("FAKE_NVML_CARDS", "3", 1);
  const auto facts = ask_driver(TROUPE_FAKE_CUDA, TROUPE_FAKE_NVML);
  CHECK(facts.problem.empty());
  CHECK(facts.version == "580.65.06");
  CHECK(facts.cuda == 13000);
  CHECK(facts.machine_cards == 3);
  CHECK(facts.cards ==
        std::vector<card>{
            {.index = 0, .name = "NVIDIA H200", .memory_bytes = 150754820096, .major = 9},
            {.index = 1, .name = "GTX 1080", .memory_bytes = 8589934592, .major = 6, .minor = 1}});
}

TEST_CASE("a driver that does not start gives its reason") {
  ::setenv("FAKE_CUDA_INIT", "999", 1);
  const auto facts = ask_driver(TROUPE_FAKE_CUDA, TROUPE_FAKE_NVML);
  ::unsetenv("FAKE_CUDA_INIT");
  CHECK(facts.problem ==
        "the NVIDIA driver does not start: unknown error; see whether nvidia-smi works on this "
        "machine");
}

TEST_CASE("LibTorch's CUDA library that lacks another names the package that has it") {
  const auto facts = load_torch_cuda(TROUPE_LACKING_TORCH_CUDA);
  CHECK_THAT(
      facts.problem,
      ContainsSubstring("LibTorch's CUDA library cannot be loaded: libcudnn_of_tests.so.9: cannot "
                        "open shared object file") &&
          ContainsSubstring("; pip install nvidia-cudnn-cu13"));
  CHECK(reason_against(card_of(9, 0), facts) == facts.problem);
}

TEST_CASE("packages are told apart by the library's whole name") {
  CHECK(package_of_missing("libcusparseLt.so.0: cannot") == "nvidia-cusparselt-cu13");
  CHECK(package_of_missing("libcusparse.so.12: cannot") == "nvidia-cusparse");
  CHECK(package_of_missing("libnvshmem_host.so.3: cannot") == "nvidia-nvshmem-cu13");
  CHECK(package_of_missing("libother.so.1: cannot").empty());
}

TEST_CASE("LibTorch's CUDA library, once loaded, tells what it was built for") {
  const auto facts = load_torch_cuda(TROUPE_FAKE_TORCH_CUDA);
  CHECK(facts.problem == "");
  CHECK(facts.cuda == 13000);
  CHECK(facts.architectures == std::vector<built_architecture>{{.version = 75},
                                                               {.version = 90},
                                                               {.version = 120},
                                                               {.version = 120, .portable = true}});
}

// LibTorch parses the variable at each product of matrices.
TEST_CASE("LibTorch is made ready for GPUs without a setting of cuBLAS's workspaces") {
  ::unsetenv("CUBLAS_WORKSPACE_CONFIG");
  static_cast<void>(find_usable_cards());
  CHECK(std::getenv("CUBLAS_WORKSPACE_CONFIG") == nullptr);
}

}  // namespace
