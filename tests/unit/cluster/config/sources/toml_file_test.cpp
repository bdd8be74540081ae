#include <sys/stat.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <regex>
#include <string>

#include "cluster/config/sources/toml_file.hpp"
#include "tests/unit/cluster/config_fixture.hpp"

namespace {

using namespace troupe;
using namespace troupe::cluster;
using namespace troupe::cluster::testing;

std::string toml_error(const std::string& text) {
  const auto table = option_table(trainer);
  const auto read = parse_toml(text, "run.toml", table, variables_of_process());
  return read.complaints.empty() ? "accepted" : read.complaints.front().text;
}

/// Sets every key, with files of the folder HERE.
constexpr const char* all_keys = R"(
[pipeline]
stages = 3
cut = ["layer3", "layer4.1"]
schedule = "gpipe"
micro_batches = 8
recompute = ["layer3"]
credits = 3
threads_per_stage = 2
stages_in = "threads"
[model]
name = "resnet18"
classes = 7
init = "HERE/w.safetensors"
memory_format = "channels_last"
precision = "bf16"
[optimizer]
name = "sgd"
lr = 1
momentum = 0.25
weight_decay = 1e-4
nesterov = true
lr_schedule = "cosine"
lr_warmup = 7
lr_end = 0.5
groups = ["*.bias|bn* lr_scale=2"]
clip_value = 3
clip_norm = 4.0
[data]
source = "folder:x"
image_size = 48
threads = 3
strict = true
shuffle = false
[train]
batch_size = 32
epochs = 4
loss = "mse"
seed = 9
eval = false
eval_every = 5
save = "HERE/s"
save_state = true
verify = true
verify_tolerance = 0.25
on_nan = "skip"
on_fault = "stop"
loss_scale = "dynamic"
loss_scale_interval = 50
[link]
transport = "loopback"
listen = "localhost:80"
network = "trusted"
secret_file = "HERE/secret"
[observe]
json = "HERE/j"
predict = true
progress = false
verbose = true
)";

struct mistake {
  std::string toml;
  std::string text;
};

}  // namespace

TEST_CASE("every key of a file reaches the same member as its flag") {
  const folder here;
  const std::string init = here.write("w.safetensors", "x");
  const std::string secret = here.write_secret("secret");
  const std::string text = std::regex_replace(all_keys, std::regex("HERE/"), here.file(""));
  const trainer_config c = config_of({"--config", here.write("run.toml", text)});
  pipeline_config cut{3, {"layer3", "layer4.1"}, "gpipe", 8, 3, 2, placement::threads};
  cut.partition = partition::cuts;
  cut.recompute = {"layer3"};
  CHECK(c.pipeline == cut);
  CHECK(c.model ==
        model_config{"resnet18", 7, init, memory_format::channels_last, engine::precision::bf16});
  CHECK(c.optimizer == optimizer_config{"sgd",
                                        {{"dampening", 0},
                                         {"lr", 1},
                                         {"maximize", 0},
                                         {"momentum", 0.25},
                                         {"nesterov", 1},
                                         {"weight_decay", 1e-4}},
                                        {.curve = lr_schedule::cosine, .warmup = 7, .end = 0.5},
                                        {"*.bias|bn* lr_scale=2"},
                                        3,
                                        4});
  CHECK(c.data == data_config{"folder:x", "", 48, 3, true, false});
  CHECK(c.train == train_config{32, std::nullopt, 4, "mse", 9, false, 5, here.file("s"), true, 1, 0,
                                norm_scope::local, true, 0.25, nan_policy::skip, fault_policy::stop,
                                0, 50});
  CHECK(c.link == link_config{transport::loopback, "localhost:80", network::trusted, secret});
  CHECK(c.observe == observe_config{here.file("j"), false, true, true});
}

TEST_CASE("an unknown key gives one line with file, line, column, and what is meant and allowed") {
  const auto [toml, text] = GENERATE(values<mistake>({
      {"[pipeline]\nstagse = 2\n",
       "run.toml:2:1: pipeline.stagse: unknown key; did you mean stages?; allowed: stages, "
       "replicas, zero, reduce, edges, cut, "
       "partition, memory_mib, recompute, schedule, schedule_file, chunks, micro_batches, credits, "
       "threads_per_stage, idle_cores, device, stages_in"},
      {"[link]\nqqqq = 2\n",
       "run.toml:2:1: link.qqqq: unknown key; allowed: transport, listen, "
       "network, secret_file"},
      {"[link]\nlr = 2\n",
       "run.toml:2:1: link.lr: unknown key; did you mean lr in [optimizer]?; allowed: transport, "
       "listen, network, secret_file"},
      {"\n[pipline]\nstages = 2\n",
       "run.toml:2:2: [pipline]: unknown table; did you mean [pipeline]?; allowed: pipeline, "
       "model, "
       "optimizer, data, train, checkpoint, link, observe, cluster, node"},
      {"[[nodes]]\nhost = 'a'\n",
       "run.toml:1:3: [nodes]: unknown table; did you mean [node]?; allowed: pipeline, model, "
       "optimizer, data, train, checkpoint, link, observe, cluster, node"},
      {"lr = 0.1\n",
       "run.toml:1:1: lr: unknown key outside of a table; did you mean lr in [optimizer]?"},
      {"zzz = 0.1\n", "run.toml:1:1: zzz: unknown key outside of a table"},
  }));
  CHECK(toml_error(toml) == text);
}

TEST_CASE("a wrong value gives one line with file, line, column, key and what is allowed") {
  const auto [toml, text] = GENERATE(values<mistake>({
      {"pipeline = 3\n", "run.toml:1:12: pipeline: expected a table, got the integer 3"},
      {"[[pipeline]]\n", "run.toml:1:1: pipeline: expected a table, got an array"},
      {"[pipeline]\nstages = \"two\"\n",
       "run.toml:2:10: pipeline.stages: expected an integer, got the text \"two\"; allowed: 1 to "
       "1024"},
      {"[pipeline]\nstages = 2.5\n",
       "run.toml:2:10: pipeline.stages: expected an integer, got the number 2.5; allowed: 1 to "
       "1024"},
      {"[pipeline]\nstages = [2]\n",
       "run.toml:2:10: pipeline.stages: expected an integer, got an array; allowed: 1 to 1024"},
      {"[pipeline]\nstages = {a = 1}\n",
       "run.toml:2:10: pipeline.stages: expected an integer, got a table; allowed: 1 to 1024"},
      {"[train]\nseed = 2020-01-01\n",
       "run.toml:2:8: train.seed: expected an integer, got a date or time; allowed: 0 or more"},
      {"[train]\neval = 1\n",
       "run.toml:2:8: train.eval: expected a boolean, got the integer 1; allowed: true, false"},
      {"[optimizer]\nlr = true\n",
       "run.toml:2:6: optimizer.lr: expected a number, got the boolean true; allowed: above 0"},
      {"[optimizer]\nlr = nan\n",
       "run.toml:2:6: optimizer.lr: nan is not a finite number; allowed: above 0"},
      {"[optimizer]\nlr = -1\n",
       "run.toml:2:6: optimizer.lr: -1 is out of range; allowed: above 0"},
      {"[optimizer]\ndampening = 1.5\n",
       "run.toml:2:13: optimizer.dampening: 1.5 is out of range; allowed: 0 to 1"},
      {"[pipeline]\ncut = [\"a\", 3]\n",
       "run.toml:2:13: pipeline.cut: expected a list of texts, got the integer 3 as element 2"},
      {"[pipeline]\ncut = 3\n",
       "run.toml:2:7: pipeline.cut: expected a list of texts, got the integer 3"},
      {"[pipeline]\ncut = [\"\"]\n", "run.toml:2:7: pipeline.cut: name 1 of the list is empty"},
      {"[model]\nname = 3\n", "run.toml:2:8: model.name: expected a text, got the integer 3"},
      {"[model]\nprecision = \"bf1\"\n",
       "run.toml:2:13: model.precision: unknown value \"bf1\"; did you mean \"bf16\"?; allowed: "
       "fp32, "
       "bf16, fp16"},
      {"[train]\nloss_scale = 0.5\n",
       "run.toml:2:14: train.loss_scale: 0.5 is out of range; allowed: dynamic, 1 to 16777216"},
      {"[train]\nloss_scale = \"fixed\"\n",
       "run.toml:2:14: train.loss_scale: expected a number, got the text \"fixed\"; allowed: "
       "dynamic, "
       "1 to 16777216"},
  }));
  CHECK(toml_error(toml) == text);
}

TEST_CASE("of several mistakes the first by line is reported") {
  CHECK(toml_error("[train]\nseed = -1\n[data]\nthreads = 0\n") ==
        "run.toml:2:8: train.seed: -1 is out of range; allowed: 0 or more");
}

TEST_CASE("text that is not TOML is refused with its line") {
  CHECK(toml_error("[train]\nseed = \n").starts_with("run.toml:2:8: not valid TOML: "));
  CHECK(toml_error("[train]\nseed = 1\nseed = 2\n").starts_with("run.toml:3:8: not valid TOML: "));
  CHECK(toml_error("\x01\xff").starts_with("run.toml:1:1: not valid TOML: "));
}

TEST_CASE("a name of very many dotted parts is refused with its line") {
  std::string parts = "a";
  for (int i = 0; i < 50'000; ++i) parts += ".a";
  const std::string why = ": not valid TOML: a name of more than 256 dotted parts";
  CHECK(toml_error("[train]\n[" + parts + "]\n") == "run.toml:2" + why);
  CHECK(toml_error("[train]\n\n" + parts + " = 1\n") == "run.toml:3" + why);
  CHECK(toml_error("[train]\nseed = {" + parts + " = 1}\n") == "run.toml:2" + why);
  CHECK(toml_error("[data]\nsource = \"" + std::string(300, '.') + "\"\n") == "accepted");
}

TEST_CASE("what has no end is no configuration") {
  const folder here;
  const auto table = option_table(trainer);
  const auto error_of = [&](const std::string& file) {
    const auto read = read_toml(file, table, variables_of_process());
    return read.complaints.empty() ? "accepted" : read.complaints.front().text;
  };
  CHECK(error_of("/dev/zero").starts_with("--config: /dev/zero has more than 16 MiB"));
  const std::string pipe = here.file("pipe");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK(error_of(pipe) ==
        "--config: " + pipe + " is a named pipe; write the settings to a file and give that");
}

TEST_CASE("two rivals in one file are refused") {
  const folder here;
  const std::string file = here.write("run.toml", "[train]\nepochs = 1\nsteps = 2\n");
  CHECK(error_of({"--config", file}) == file + ":3:9: train.steps: given together with " + file +
                                            ":2:10: train.epochs; give one of them");
}

TEST_CASE("the sample configuration is accepted") {
  const trainer_config c =
      config_of({"--config", TROUPE_SOURCE_DIR "/apps/resnet_pipeline/fashion_mnist.toml"});
  CHECK(c.model.name == "resnet50");
  CHECK(c.pipeline.stages == 2);
  CHECK(c.train.steps.has_value());
}
