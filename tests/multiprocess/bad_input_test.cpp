// What a user may get wrong: one clear line, exit code 2, nothing left behind.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "engine/base/free_memory.hpp"
#include "engine/state/safetensors.hpp"
#include "tests/grey_image.hpp"
#include "tests/multiprocess/program.hpp"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

namespace {

using namespace troupe;
using Catch::Matchers::ContainsSubstring;
using tests::run_program;
using tests::scratch_folder;

/// Runs a good command but for `arguments` and expects a refusal whose one line holds `words`.
void refuses(const std::vector<std::string>& arguments, const std::vector<std::string>& words) {
  auto all = arguments;
  for (const auto& [flag, value] :
       {std::pair("--model", "resnet18"), std::pair("--data", "synthetic:3x32x32:10:8"),
        std::pair("--batch-size", "8"), std::pair("--steps", "1")}) {
    if (std::find(all.begin(), all.end(), flag) == all.end()) all.insert(all.end(), {flag, value});
  }
  const auto outcome = run_program(all);
  CHECK(outcome.code == 2);
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
  for (const auto& word : words) CHECK_THAT(outcome.err, ContainsSubstring(word));
  CHECK(tests::children_of(getpid()).empty());
}

void write(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file) << text;
}

/// A port of loopback that somebody else listens at.
class taken_port {
 public:
  taken_port() : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    REQUIRE(bind(socket_, reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(listen(socket_, 1) == 0);
    REQUIRE(getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port_ = ntohs(address.sin_port);
  }
  ~taken_port() { close(socket_); }
  [[nodiscard]] std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  int socket_;
  int port_ = 0;
};

}  // namespace

TEST_CASE("Wrong flags are refused by name", "[untimed]") {
  refuses({"--shedule", "1f1b"}, {"--shedule", "--schedule"});
  refuses({"--stages", "two"}, {"--stages", "two"});
  refuses({"--schedule", "zigzag"}, {"zigzag", "gpipe", "1f1b", "zb-v"});
  refuses({"--schedule", "zb-v", "--chunks", "3"}, {"--chunks", "zb-v", "3"});
  refuses({"--micro-batches", "9"}, {"9", "8"});
  refuses({"--credits", "0"}, {"--credits", "0", "1 to 16384"});
  refuses({"--model", "resnet19"},
          {"--model: unknown value \"resnet19\"; did you mean \"resnet18\"?; allowed: ",
           "resnext101_32x8d"});
  refuses({"--partition", "automatic"},
          {"--partition: cut 'automatic' names no layer; did you mean 'auto'?",
           "--partition takes auto or even"});
  refuses({"--lr", "-1"}, {"--lr", "-1"});
}

TEST_CASE("Impossible pipelines are refused with the numbers", "[untimed]") {
  refuses({"--stages", "40"}, {"--stages: cannot cut 14 layers into 40 stages"});
  refuses({"--schedule", "zb-v", "--stages", "8"},
          {"--stages: ", "14 layers into 8 stages with 2 chunks each", "schedule: zb-v"});
  refuses(
      {"--schedule", "interleaved-1f1b", "--chunks", "5", "--stages", "3", "--partition", "auto"},
      {"--stages: ", "3 stages with 5 chunks each", "schedule: interleaved-1f1b"});
  refuses({"--stages", "2", "--cut", "layer9"}, {"layer9", "layer3"});
  refuses({"--stages", "3", "--cut", "layer3"}, {"makes 2 stages, not 3", "layer3"});
  refuses({"--classes", "4"}, {"--classes: 4 classes are too few: the data has 10"});
}

TEST_CASE("A micro-batch of one sample, which no batch norm trains on, is refused beforehand",
          "[untimed]") {
  refuses({"--micro-batches", "8"}, {"--micro-batches: 8 micro-batches: a step of 8 samples",
                                     "at most --micro-batches 4", "--image-size"});
  refuses({"--batch-size", "1", "--micro-batches", "1"}, {"a step of 1 sample", "--batch-size"});
  refuses({"--data", "synthetic:3x32x32:10:13", "--steps", "2"},
          {"the last step of a pass over 13 samples has 5", "at most --micro-batches 2"});
  refuses({"--data", "synthetic:3x32x32:10:9", "--steps", "2", "--micro-batches", "auto"},
          {"the last step of a pass over 9 samples has 1", "a --batch-size that leaves more"});
}

TEST_CASE("Too few descriptors are told in one line, with what to do", "[untimed]") {
  const auto outcome = tests::run_other(
      "/bin/sh",
      {"-c", "ulimit -n 16; exec " TROUPE_PROGRAM
             " --model resnet18 --data synthetic:3x32x32:10:8 --batch-size 8 --steps 1"});
  CHECK(outcome.code != 0);
  CHECK_THAT(outcome.err, ContainsSubstring("raise the limit on open files (ulimit -n "));
  CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
}

TEST_CASE("A wrong config file is refused with file, line and key", "[untimed]") {
  const scratch_folder folder;
  const auto file = folder / "run.toml";
  write(file, "[pipeline]\nstages = 2\nmicrobatches = 4\n");
  refuses({"--config", file}, {file.string() + ":3", "microbatches", "micro_batches"});
  write(file, "[train]\nbatch_size = \"many\"\n");
  refuses({"--config", file}, {file.string() + ":2", "batch_size"});
  write(file, "[train\n");
  refuses({"--config", file}, {file.string() + ":1"});
  refuses({"--config", folder / "none.toml"}, {"none.toml"});
}

TEST_CASE("What only the model and the data show to be wrong is refused with file, line and key",
          "[untimed]") {
  const scratch_folder folder;
  const auto file = folder / "run.toml";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"[pipeline]\ncut = [\"layer9\"]\n", ":2:7: pipeline.cut: cut 'layer9' names no layer"},
      {"[pipeline]\nrecompute = [\"x\"]\n", ":2:13: pipeline.recompute: recompute 'x' names"},
      {"[pipeline]\nstages = 40\n", ":2:10: pipeline.stages: cannot cut 14 layers"},
      {"[model]\nclasses = 4\n", ":2:11: model.classes: 4 classes are too few"},
      {"[optimizer]\ngroups = [\"head.* lr_scale=1\"]\n",
       ":2:10: optimizer.groups: parameter group 'head.* lr_scale=1' matches no parameter"},
      {"[checkpoint]\nresume = \"/none\"\n", ":2:10: checkpoint.resume: there is no /none"}};
  for (const auto& [text, words] : cases) {
    write(file, text);
    INFO(text);
    refuses({"--config", file}, {file.string() + words});
  }
  write(file, "[data]\nsource = \"imagenet\"\n");
  const auto unknown = run_program({"--config", file});
  CHECK(unknown.code == 2);
  CHECK_THAT(unknown.err, ContainsSubstring(file.string() + ":2:10: data.source: unknown data "
                                                            "source \"imagenet\""));
}

TEST_CASE("A FIFO for JSON lines that nobody reads is refused at once", "[untimed]") {
  const scratch_folder folder;
  const auto lines = folder / "lines";
  REQUIRE(::mkfifo(lines.c_str(), 0600) == 0);
  const auto outcome = run_program({"--model", "resnet18", "--data", "synthetic:3x32x32:10:8",
                                    "--batch-size", "8", "--steps", "1", "--json", lines});
  CHECK(outcome.code == 2);
  CHECK_THAT(outcome.last_line(),
             ContainsSubstring(lines.string() + ": the JSON lines cannot be written: nobody "
                                                "reads from it; start its reader first"));
}

TEST_CASE("A layer that no memory here holds is refused before it is measured", "[untimed]") {
  if (engine::read_free_memory().bytes > std::uint64_t{120} << 30) SKIP("this machine holds it");
  refuses({"--check", "--model", "resnet50", "--data", "synthetic:3x32x32:16777216:8"},
          {"the layer 'fc' alone has 131", " MiB of weights, but ", "are free on this machine"});
}

TEST_CASE("Samples whose activations no memory here holds are refused before they are read") {
  if (engine::read_free_memory().bytes > std::uint64_t{200} << 30) SKIP("this machine holds them");
  refuses({"--check", "--data", "synthetic:3x2304x2304:10:1024", "--batch-size", "1024"},
          {"--batch-size: the layer '", "' takes at least ", " for a micro-batch of ",
           " are free on this machine",
           "take smaller micro-batches (more of them: "
           "--micro-batches), smaller samples, or another machine"});
}

TEST_CASE("A program that is none of Troupe is not launched", "[untimed]") {
  const scratch_folder folder;
  const auto file = folder / "run.toml";
  write(file, "[cluster]\nprogram = \"/bin/true\"\n");
  for (const std::string verb : {"check", "launch", "doctor"}) {
    const auto outcome = tests::run_other(TROUPE_COMMAND, {verb, file});
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.err,
               ContainsSubstring(file.string() + ":2:11: cluster.program: /bin/true is no program "
                                                 "of Troupe"));
  }
  const auto as_json = tests::run_other(TROUPE_COMMAND, {"doctor", "--json", file});
  CHECK(as_json.code == 2);
  CHECK_THAT(as_json.out, ContainsSubstring("/bin/true is no program of Troupe"));
}

TEST_CASE("A wrong plan is refused with file, line, action and rule", "[untimed]") {
  const scratch_folder folder;
  const auto file = folder / "plan.txt";
  write(file,
        "schedule mine microbatches 2\nstage 0 cap 2: F0 F1 B0 B1\nstage 1 cap 2: F0 B0 F1\n");
  refuses({"--schedule-file", file}, {file.string(), "line 3, column 24", "B1 is missing"});
  write(file, "schedule mine microbatches 2\nstage 0 cap 2: F0 F1 X0 B1\n");
  refuses({"--schedule-file", file}, {file.string(), "line 2, column 22", "'X0'"});
  write(file,
        "schedule mine microbatches 2\nstage 0 cap 2: F0 F1 B0 B1\nstage 1 cap 1: F0 F1 B0 B1\n");
  refuses({"--schedule-file", file}, {file.string(), "line 3, column 19", "memory cap of 1"});
  refuses({"--schedule-file", folder / "none.txt"}, {"none.txt"});
}

TEST_CASE("Missing and broken data is refused with the file's name", "[untimed]") {
  const scratch_folder folder;
  refuses({"--data", "fashion-mnist:" + (folder / "none").string()}, {"none"});
  refuses({"--data", "folder:" + (folder / "none").string()}, {"none"});
  refuses({"--data", "cifar"}, {"cifar", "fashion-mnist", "synthetic"});
  write(folder / "cut.safetensors", "\x10");
  refuses({"--data", "safetensors:" + (folder / "cut.safetensors").string()}, {"cut.safetensors"});
}

TEST_CASE("An unreadable image is named and left out of a run, and ends one that is strict",
          "[untimed]") {
  const scratch_folder folder;
  tests::write_grey_images(folder / "images", 4);
  write(folder / "images/train/a/2.png", "no image");
  const std::vector<std::string> run{
      "--model",         "resnet18", "--data",       "folder:" + (folder / "images").string(),
      "--image-size",    "32",       "--batch-size", "8",
      "--micro-batches", "2",        "--steps",      "2",
      "--stages",        "2",        "--no-eval"};
  const auto without = run_program(run);
  CHECK(without.code == 0);
  const std::string named = "train/a/2.png cannot be used: ";
  CHECK_THAT(without.err, ContainsSubstring(named) && ContainsSubstring("; it is left out\n") &&
                              ContainsSubstring(" unreadable samples were skipped"));
  auto strict = run;
  strict.emplace_back("--strict");
  const auto ended = run_program(strict);
  CHECK((ended.code == 1 || ended.code == 2));
  CHECK_THAT(ended.last_line(), ContainsSubstring(named));
  CHECK(tests::children_of(getpid()).empty());
}

TEST_CASE("Weights that do not fit are refused with the tensor's name", "[untimed]") {
  const scratch_folder folder;
  const auto file = folder / "weights.safetensors";
  REQUIRE(engine::save_safetensors(file, {{"conv1.weight", at::zeros({64, 3, 3, 3})}}));
  refuses({"--init", file}, {"weights.safetensors", "conv1.weight", "[64, 3, 7, 7]"});
  refuses({"--init", file, "--init-skip", "conv9.*"}, {"--init-skip: 'conv9.*' matches no tensor"});
  for (const double wrong : {NAN, INFINITY}) {
    REQUIRE(engine::save_safetensors(file, {{"conv1.weight", at::full({64, 3, 7, 7}, wrong)}}));
    refuses({"--init", file}, {file.string() + ": tensor \"conv1.weight\" holds " +
                               (std::isnan(wrong) ? "NaN" : "infinity")});
  }
}

TEST_CASE("Addresses that cannot be bound are refused by name", "[untimed]") {
  const taken_port taken;
  refuses({"--listen", taken.address()}, {taken.address()});
  refuses({"--listen", "192.0.2.1:0"}, {"192.0.2.1", "--secret-file"});
  refuses({"--listen", taken.address(), "--link", "tcp"}, {taken.address()});
}

TEST_CASE("An answer that standard output does not take ends a command with one line and a code",
          "[untimed]") {
  const scratch_folder folder;
  const auto file = (folder / "run.toml").string();
  write(file, "[cluster]\nprogram = \"" TROUPE_PROGRAM
              "\"\n[model]\nname = \"resnet18\"\n[data]\nsource = \"synthetic:3x32x32:10:8\"\n"
              "[train]\nbatch_size = 8\nsteps = 1\n");
  const std::string program = TROUPE_PROGRAM;
  const std::string command = TROUPE_COMMAND;
  for (const auto& line :
       {program + " --help", program + " --version", program + " --config-reference",
        command + " --help", command + " check " + file, command + " doctor " + file,
        command + " doctor --json " + file, command + " doctor --json " + file + "none",
        command + " plan", command + " devices", command + " devices --json"}) {
    const auto outcome = tests::run_other("/bin/sh", {"-c", "exec " + line + " >/dev/full"});
    CHECK(outcome.code == 2);
    CHECK_THAT(outcome.err, ContainsSubstring("standard output took less than all of the answer: "
                                              "No space left on device; make room"));
    // Where the machine is busy, what takes long says how far it is.
    const auto lines = outcome.err.substr(
        outcome.err.rfind("info: measuring ", 0) == 0 ? outcome.err.find('\n') + 1 : 0);
    CHECK(std::count(lines.begin(), lines.end(), '\n') == 1);
  }
}

TEST_CASE("Names with control characters reach no terminal as such", "[untimed]") {
  const scratch_folder folder;
  const auto file = (folder / "run.toml").string();
  write(file, "[cluster]\nprogram = \"" TROUPE_PROGRAM
              "\"\n[[node]]\nname = \"al\\npha\\u001B[31m\\u009B\"\n");
  for (const std::string verb : {"check", "launch", "doctor"}) {
    const auto outcome = tests::run_other(TROUPE_COMMAND, {verb, file});
    const auto all = outcome.out + outcome.err;
    INFO(verb << ": " << all);
    CHECK(outcome.code == 2);
    CHECK_THAT(all, ContainsSubstring("run.toml:4:8: node.name: \"al\\npha\\x1b[31m\\xc2\\x9b\" is "
                                      "no name of a node; use letters, digits"));
    CHECK(all.find('\x1b') == std::string::npos);
    CHECK(all.find('\x9b') == std::string::npos);
  }
  const auto missing =
      tests::run_other(TROUPE_COMMAND, {"check", folder / "no\x1b[1mthing\n.toml"});
  CHECK(missing.code == 2);
  CHECK_THAT(missing.err, ContainsSubstring("no\\x1b[1mthing\\n.toml cannot be read"));
  CHECK(missing.err.find('\x1b') == std::string::npos);
}
