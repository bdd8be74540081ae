#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_floating_point.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "cluster/config/command_line.hpp"
#include "cluster/config/near_miss.hpp"
#include "cluster/config/option.hpp"
#include "cluster/config/secret_file.hpp"
#include "cluster/config/toml_file.hpp"

namespace {

using namespace troupe;
using namespace troupe::cluster;

const program_info trainer{"trainer", "1.2.3", "Trains."};

result<command> read(const std::vector<std::string>& words) {
  std::vector<const char*> arguments;
  arguments.reserve(words.size());
  for (const std::string& word : words) arguments.push_back(word.c_str());
  return read_command_line(trainer, arguments);
}

trainer_config config_of(const std::vector<std::string>& words) {
  const auto asked = read(words);
  INFO((asked ? "" : asked.error().text));
  REQUIRE(asked);
  return std::get<trainer_config>(*asked);
}

std::string error_of(const std::vector<std::string>& words) {
  const auto asked = read(words);
  if (asked) return "accepted";
  CHECK(asked.error().code == errc::bad_config);
  CHECK(asked.error().text.find('\n') == std::string::npos);
  return asked.error().text;
}

// A folder of its own for each test case.
class folder {
 public:
  folder() {
    std::string name = (std::filesystem::temp_directory_path() / "troupe-config-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  folder(const folder&) = delete;
  folder& operator=(const folder&) = delete;
  ~folder() { std::filesystem::remove_all(path_); }

  [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(file(name)) << text;
    return file(name);
  }
  [[nodiscard]] std::string write_secret(const std::string& name) const {
    const std::string made = write(name, "a secret of good length\n");
    std::filesystem::permissions(made, std::filesystem::perms(0600));
    return made;
  }

 private:
  std::filesystem::path path_;
};

std::string toml_error(const std::string& text) {
  const auto settings = parse_toml(text, "run.toml");
  if (settings) return "accepted";
  CHECK(settings.error().code == errc::bad_config);
  return settings.error().text;
}

}  // namespace

TEST_CASE("without flags every value has its default") {
  trainer_config usual;
  usual.optimizer.options = {{"dampening", 0},  {"lr", 0.008},   {"maximize", 0},
                             {"momentum", 0.9}, {"nesterov", 0}, {"weight_decay", 0}};
  CHECK(config_of({}) == usual);
}

TEST_CASE("every flag reaches its member") {
  const folder here;
  const std::string init = here.write("w.safetensors", "x");
  const std::string secret = here.write_secret("secret");
  const trainer_config c = config_of({"--model",
                                      "resnet18",
                                      "--classes",
                                      "7",
                                      "--stages",
                                      "3",
                                      "--cut",
                                      "layer3,layer4.1",
                                      "--schedule",
                                      "gpipe",
                                      "--micro-batches",
                                      "8",
                                      "--credits",
                                      "3",
                                      "--batch-size",
                                      "32",
                                      "--steps",
                                      "12",
                                      "--data",
                                      "folder:x",
                                      "--image-size",
                                      "48",
                                      "--data-threads",
                                      "3",
                                      "--strict",
                                      "--no-shuffle",
                                      "--loss",
                                      "mse",
                                      "--optimizer",
                                      "qhm",
                                      "--lr",
                                      "0.5",
                                      "--momentum",
                                      "0.25",
                                      "--nu",
                                      "0.125",
                                      "--weight-decay",
                                      "1e-4",
                                      "--weight-decay-type",
                                      "direct",
                                      "--lr-schedule",
                                      "one-cycle",
                                      "--lr-warmup",
                                      "3",
                                      "--lr-end",
                                      "0.25",
                                      "--lr-step-every",
                                      "4",
                                      "--lr-step-factor",
                                      "0.5",
                                      "--lr-power",
                                      "3",
                                      "--lr-peak",
                                      "0.125",
                                      "--lr-start",
                                      "0.75",
                                      "--groups",
                                      "*.bias weight_decay=0,bn* nu=1",
                                      "--clip-value",
                                      "2",
                                      "--clip-norm",
                                      "1.5",
                                      "--accumulate",
                                      "2",
                                      "--save-state",
                                      "--seed",
                                      "9",
                                      "--threads-per-stage",
                                      "2",
                                      "--memory-format",
                                      "channels_last",
                                      "--precision",
                                      "bf16",
                                      "--init",
                                      init,
                                      "--save",
                                      here.file("s"),
                                      "--json",
                                      here.file("j"),
                                      "--no-eval",
                                      "--eval-every",
                                      "5",
                                      "--link",
                                      "loopback",
                                      "--stages-in",
                                      "threads",
                                      "--listen",
                                      "[::1]:80",
                                      "--secret-file",
                                      secret,
                                      "--recompute",
                                      "layer3,layer4",
                                      "--verify",
                                      "--verify-tolerance",
                                      "0.25",
                                      "--predict",
                                      "--no-progress",
                                      "--verbose"});
  pipeline_config cut{3, {"layer3", "layer4.1"}, "gpipe", 8, 3, 2, placement::threads};
  cut.partition = partition::cuts;
  cut.recompute = {"layer3", "layer4"};
  CHECK(c.pipeline == cut);
  CHECK(c.model ==
        model_config{"resnet18", 7, init, memory_format::channels_last, precision::bf16});
  CHECK(c.optimizer == optimizer_config{"qhm",
                                        {{"lr", 0.5},
                                         {"momentum", 0.25},
                                         {"nu", 0.125},
                                         {"weight_decay", 1e-4},
                                         {"weight_decay_type", 1}},
                                        {lr_schedule::one_cycle, 3, 0.25, 4, 0.5, 3, 0.125, 0.75},
                                        {"*.bias weight_decay=0", "bn* nu=1"},
                                        2,
                                        1.5});
  CHECK(c.data == data_config{"folder:x", 48, 3, true, false});
  CHECK(c.train == train_config{32, 12, std::nullopt, loss_kind::mse, 9, false, 5, here.file("s"),
                                true, 2, true, 0.25});
  CHECK(c.link == link_config{transport::loopback, "[::1]:80", secret});
  CHECK(c.observe == observe_config{here.file("j"), false, true, true});
  CHECK(config_of({"--on-nan", "skip"}).train.on_nan == nan_policy::skip);
}

TEST_CASE("every key of a file reaches the same member as its flag") {
  const folder here;
  const std::string init = here.write("w.safetensors", "x");
  const std::string file = here.write("run.toml", R"(
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
init = ")" + init + R"("
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
save = ")" + here.file("s") + R"("
save_state = true
verify = true
verify_tolerance = 0.25
on_nan = "skip"
[link]
transport = "loopback"
listen = "localhost:80"
secret_file = ")" + here.write_secret("secret") +
                                                      R"("
[observe]
json = ")" + here.file("j") + R"("
predict = true
progress = false
verbose = true
)");
  const trainer_config c = config_of({"--config", file});
  pipeline_config cut{3, {"layer3", "layer4.1"}, "gpipe", 8, 3, 2, placement::threads};
  cut.partition = partition::cuts;
  cut.recompute = {"layer3"};
  CHECK(c.pipeline == cut);
  CHECK(c.model ==
        model_config{"resnet18", 7, init, memory_format::channels_last, precision::bf16});
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
  CHECK(c.data == data_config{"folder:x", 48, 3, true, false});
  CHECK(c.train == train_config{32, std::nullopt, 4, loss_kind::mse, 9, false, 5, here.file("s"),
                                true, 1, true, 0.25, nan_policy::skip});
  CHECK(c.link == link_config{transport::loopback, "localhost:80", here.file("secret")});
  CHECK(c.observe == observe_config{here.file("j"), false, true, true});
}

TEST_CASE("what is not given of an optimizer other than sgd is its own default") {
  const auto adamw = config_of({"--optimizer", "adamw", "--beta2", "0.95", "--amsgrad"}).optimizer;
  CHECK(adamw.options.at("lr") == 1e-3);
  CHECK(adamw.options.at("beta2") == 0.95);
  CHECK(adamw.options.at("amsgrad") == 1);
  CHECK_FALSE(adamw.options.contains("momentum"));
  CHECK(config_of({"--optimizer", "muon", "--adjust-lr", "match_rms_adamw"})
            .optimizer.options.at("adjust_lr") == 1);
}

TEST_CASE("an optimizer that cannot be is refused before training starts") {
  struct row {
    std::vector<std::string> words;
    std::string text;
  };
  const auto [words, text] = GENERATE(values<row>({
      {{"--optimizer", "adamx"},
       "--optimizer: unknown value \"adamx\"; did you mean \"adam\"?; allowed: adadelta, adagrad, "
       "adam, adamax, adamw, lamb, lion, muon, nadam, qhm, radam, rmsprop, rprop, sgd"},
      {{"--nu", "0.5"},
       "--nu: optimizer 'sgd' has no option 'nu'; its options: dampening, lr, maximize, momentum, "
       "nesterov, weight_decay"},
      {{"--optimizer", "adam", "--beta1", "1"},
       "--beta1: optimizer 'adam': beta1 = 1 is out of range: from 0 to below 1"},
      {{"--optimizer", "adam", "--beta1", "2"}, "--beta1: 2 is out of range; allowed: 0 to 1"},
      {{"--optimizer", "qhm", "--weight-decay-type", "both"},
       "--weight-decay-type: unknown value \"both\"; allowed: grad, direct"},
      {{"--nesterov", "--momentum", "0"},
       "--nesterov: optimizer 'sgd': nesterov needs momentum > 0 and dampening = 0, and they are 0 "
       "and 0"},
      {{"--groups", "*.bias nu=1"},
       "--groups: parameter group '*.bias nu=1': optimizer 'sgd' has no option 'nu'; its options: "
       "dampening, lr, maximize, momentum, nesterov, weight_decay"},
      {{"--steps", "5", "--accumulate", "2"},
       "--accumulate: 5 steps (--steps 5) do not make whole updates of 2 steps (--accumulate 2)"},
      {{"--on-nan", "skip", "--accumulate", "2"},
       "--on-nan: skip (--on-nan skip) leaves out whole updates, so steps cannot be accumulated "
       "(--accumulate 2); use one of them"},
      {{"--clip-norm", "-1"}, "--clip-norm: -1 is out of range; allowed: 0 or more"},
      {{"--lr-peak", "1.5"}, "--lr-peak: 1.5 is out of range; allowed: 0 to 1"},
  }));
  CHECK(error_of(words) == text);
}

TEST_CASE("a flag wins over the file and the file over the default") {
  const folder here;
  const std::string file = here.write("run.toml",
                                      "[optimizer]\nlr = 0.5\nmomentum = 0.1\n"
                                      "[data]\nshuffle = false\n[train]\nepochs = 3\n");
  const trainer_config c = config_of({"--lr", "2", "--config", file, "--shuffle"});
  CHECK(c.optimizer.options.at("lr") == 2);
  CHECK(c.optimizer.options.at("momentum") == 0.1);
  CHECK(c.data.shuffle);
  CHECK(c.train.epochs == 3);
  CHECK(c.train.batch_size == train_config{}.batch_size);
}

TEST_CASE("a run length in flags replaces the other kind in the file") {
  const folder here;
  const std::string file = here.write("run.toml", "[train]\nepochs = 3\n");
  const trainer_config c = config_of({"--config", file, "--steps", "5"});
  CHECK(c.train.steps == 5);
  CHECK(c.train.epochs == std::nullopt);
}

TEST_CASE("the last of a switch and its opposite counts") {
  CHECK_FALSE(config_of({"--eval", "--no-eval"}).train.eval);
  CHECK(config_of({"--no-eval", "--eval"}).train.eval);
  CHECK_FALSE(config_of({"--eval=false"}).train.eval);
}

TEST_CASE("a value may stand behind an equals sign") {
  CHECK(config_of({"--lr=0.5"}).optimizer.options.at("lr") == 0.5);
  CHECK(config_of({"--cut=", "--steps", "3"}).pipeline.cut.empty());
}

TEST_CASE("the number of stages follows from a cut unless it is given") {
  CHECK(config_of({"--cut", "a,b,c"}).pipeline.stages == 4);
  CHECK(config_of({"--cut", "a", "--stages", "2"}).pipeline.stages == 2);
}

TEST_CASE("an empty cut in flags undoes the file's") {
  const folder here;
  const std::string file = here.write("run.toml", "[pipeline]\nstages = 2\ncut = [\"layer3\"]\n");
  const trainer_config c = config_of({"--config", file, "--stages", "4", "--cut", ""});
  CHECK(c.pipeline.stages == 4);
  CHECK(c.pipeline.cut.empty());
}

TEST_CASE("a wrong flag gives one line that begins with it") {
  struct row {
    std::vector<std::string> words;
    std::string text;
  };
  const auto [words, text] = GENERATE(values<row>({
      {{"--stagse", "2"},
       "--stagse: unknown flag; did you mean --stages?; trainer --help lists the flags"},
      {{"--stagse=2"},
       "--stagse: unknown flag; did you mean --stages?; trainer --help lists the flags"},
      {{"--zzzzzz"}, "--zzzzzz: unknown flag; trainer --help lists the flags"},
      {{"-x"}, "-x: unknown flag; trainer --help lists the flags"},
      {{"fast"}, "fast: unexpected argument; trainer --help lists the flags"},
      {{"--stages", "two"}, "--stages: \"two\" is not an integer; allowed: 1 to 1024"},
      {{"--stages", "2.5"}, "--stages: \"2.5\" is not an integer; allowed: 1 to 1024"},
      {{"--stages", ""}, "--stages: \"\" is not an integer; allowed: 1 to 1024"},
      {{"--stages", "0"}, "--stages: 0 is out of range; allowed: 1 to 1024"},
      {{"--credits", "0"}, "--credits: 0 is out of range; allowed: 1 to 16384"},
      {{"--credits", "few"}, "--credits: \"few\" is not an integer; allowed: 1 to 16384"},
      {{"--stages", "-1"}, "--stages: -1 is out of range; allowed: 1 to 1024"},
      {{"--seed", "99999999999999999999"},
       "--seed: 99999999999999999999 is out of range; allowed: 0 or more"},
      {{"--lr", "0"}, "--lr: 0 is out of range; allowed: above 0"},
      {{"--lr", "nan"}, "--lr: nan is not a finite number; allowed: above 0"},
      {{"--lr", "inf"}, "--lr: inf is not a finite number; allowed: above 0"},
      {{"--lr", "1e999"}, "--lr: 1e999 is out of range; allowed: above 0"},
      {{"--lr", "fast"}, "--lr: \"fast\" is not a number; allowed: above 0"},
      {{"--momentum", "-0.5"}, "--momentum: -0.5 is out of range; allowed: 0 or more"},
      {{"--schedule", "1f1"},
       "--schedule: unknown value \"1f1\"; did you mean \"1f1b\"?; allowed: gpipe, 1f1b, "
       "interleaved-1f1b, zb-h1, zb-h2, zb-v"},
      {{"--precision", "int4"}, "--precision: unknown value \"int4\"; allowed: fp32, bf16"},
      {{"--eval=maybe"}, "--eval: \"maybe\" is not a boolean; allowed: true, false"},
      {{"--cut", "a,,b"}, "--cut: name 2 of the list is empty"},
      {{"--cut", "a,b,a"}, "--cut: \"a\" stands in the list twice"},
      {{"--lr", "1", "--lr", "2"}, "--lr: given more than once"},
      {{"--steps"}, "--steps: needs a value; allowed: 1 or more"},
      {{"--save", "--json", "x"}, "--save: needs a value; got the flag --json"},
      {{"--steps", "5", "--epochs", "1"},
       "--epochs: given together with --steps; give one of them"},
      {{"--config", ""}, "--config: needs a value: the name of a file"},
      {{"--model", ""}, "--model: is empty; name a model"},
      {{"--data", ""}, "--data: is empty; name a data source"},
      {{"--config", "/nowhere/run.toml"},
       "--config: /nowhere/run.toml cannot be read: No such file or directory"},
      {{"--config", "/"}, "--config: / cannot be read: Is a directory"},
  }));
  CHECK(error_of(words) == text);
}

TEST_CASE("values that do not fit each other are refused by the name of the nearest") {
  const folder here;
  const std::string file = here.write("run.toml",
                                      "[pipeline]\ncut = ['a', 'b']\nstages = 3\n"
                                      "micro_batches = 6\nstages_in = 'threads'\n");
  struct row {
    std::vector<std::string> words;
    std::string text;
  };
  const std::vector<row> rows{
      {{"--micro-batches", "8", "--batch-size", "4"},
       "--micro-batches: 8 micro-batches (--micro-batches 8) need as many samples, but a batch has "
       "4 "
       "(--batch-size 4)"},
      {{"--batch-size", "2"},
       "--batch-size: 4 micro-batches (pipeline.micro_batches = 4 by default) need as many "
       "samples, "
       "but a batch has 2 (--batch-size 2)"},
      {{"--config", file, "--batch-size", "5"},
       "--batch-size: 6 micro-batches (pipeline.micro_batches = 6 in " + file +
           ":4) need as many samples, but a batch has 5 (--batch-size 5)"},
      {{"--cut", "a,b", "--stages", "2"},
       "--cut: a cut at 2 layers (--cut a, b) makes 3 stages, not 2 (--stages 2); name one layer "
       "less "
       "than stages, or none to have them balanced"},
      {{"--config", file, "--stages", "4"},
       "--stages: a cut at 2 layers (pipeline.cut = a, b in " + file +
           ":2) makes 3 stages, not 4 (--stages 4); name one layer less than stages, or none to "
           "have "
           "them balanced"},
      {{"--link", "loopback"},
       "--link: loopback (--link loopback) cannot connect stages in processes (pipeline.stages_in "
       "= "
       "processes by default); allowed there: auto, tcp, shm"},
      {{"--config", file, "--link", "shm"},
       "--link: shm (--link shm) cannot connect stages in threads (pipeline.stages_in = threads "
       "in " +
           file + ":5); allowed there: auto, loopback"},
  };
  for (const row& wrong : rows) CHECK(error_of(wrong.words) == wrong.text);
}

TEST_CASE("a combination that a file gets wrong is named by file and line") {
  const folder here;
  const std::string file =
      here.write("run.toml", "[train]\nbatch_size = 4\n\n[pipeline]\nmicro_batches = 8\n");
  CHECK(error_of({"--config", file}) ==
        file + ":5: pipeline.micro_batches: 8 micro-batches (pipeline.micro_batches = 8 in " +
            file + ":5) need as many samples, but a batch has 4 (train.batch_size = 4 in " + file +
            ":2)");
}

TEST_CASE("an address to listen on needs a host and a port") {
  for (const char* wrong :
       {"127.0.0.1", ":80", "host:", "host:70000", "::1:80", "[]:80", "a b:1", "host:8x", ""}) {
    CHECK(error_of({"--listen", wrong}) == "--listen: \"" + std::string(wrong) +
                                               "\" is not an address; allowed: HOST:PORT with a "
                                               "port from 0 to 65535 (0: any free one)");
  }
  CHECK(config_of({"--listen", "[::1]:0"}).link.listen == "[::1]:0");
}

TEST_CASE("an address that other machines reach needs a secret") {
  const folder here;
  const std::string secret = here.write_secret("secret");
  for (const char* open :
       {"0.0.0.0:0", "192.0.2.1:7", "[::]:7", "node3:7", "127.0.0.1.example:7"}) {
    CHECK(error_of({"--listen", open}) ==
          "--listen: other machines reach " + std::string(open) +
              ", so only who knows a secret may connect: name its file with --secret-file, or "
              "listen at a loopback address");
    CHECK(config_of({"--listen", open, "--secret-file", secret}).link.secret_file == secret);
  }
  for (const char* closed : {"127.0.0.1:0", "127.9.8.7:7", "[::1]:7", "localhost:7"})
    CHECK(config_of({"--listen", closed}).link.listen == closed);
  const std::string file = here.write("c.toml", "[link]\nlisten = \"0.0.0.0:80\"\n");
  CHECK(error_of({"--config", file}).starts_with(file + ":2: link.listen: other machines"));
  CHECK(error_of({"--join", "node3:7", "--node-name", "a"}) ==
        "--join: node3:7 is on another machine: name the file of the cluster's secret with "
        "--secret-file");
}

TEST_CASE("a plan from a file decides what the user leaves open") {
  const folder here;
  const std::string plan = here.write("plan.txt",
                                      "schedule mine microbatches 2 chunks 2 v-shaped\n"
                                      "stage 0 cap 4: 0F0 0F1 1F0 1B0 1F1 1B1 0B0 0B1\n"
                                      "stage 1 cap 4: 0F0 1F0 0F1 1F1 1B0 0B0 1B1 0B1\n");
  const auto c = config_of({"--schedule-file", plan});
  CHECK(c.pipeline.stages == 2);
  CHECK(c.pipeline.micro_batches == 2);
  CHECK(slices_of(c.pipeline) == 4);
  CHECK(schedule_of(c.pipeline).given->schedule == "mine");
  CHECK(config_of({"--schedule-file", plan, "--micro-batches", "1"}).pipeline.micro_batches == 1);
  CHECK(config_of({"--schedule-file", plan, "--cut", "a,b,c"}).pipeline.stages == 2);
  CHECK(error_of({"--schedule-file", plan, "--stages", "3"}) ==
        "--schedule-file: 3 (--stages 3), but the plan has 2");
  CHECK(error_of({"--schedule-file", plan, "--micro-batches", "3"}) ==
        "--schedule-file: 3 (--micro-batches 3), but the plan has no more than 2");
  CHECK(error_of({"--schedule-file", plan, "--schedule", "1f1b"}).find("give one of them") !=
        std::string::npos);
  const std::string file = here.write("run.toml", "[pipeline]\nschedule_file = \"" + plan + "\"\n");
  CHECK(config_of({"--config", file}).pipeline.plan.has_value());
  CHECK_FALSE(config_of({"--config", file, "--schedule", "gpipe"}).pipeline.plan.has_value());
  const std::string wrong = here.write("wrong.txt",
                                       "schedule mine microbatches 1\n"
                                       "stage 0 cap 1: F0 B0 B0\n");
  CHECK(error_of({"--schedule-file", wrong}) ==
        "--schedule-file: " + wrong + ": line 2, column 22: stage 0: B0 appears twice");
  CHECK(error_of({"--schedule-file", here.file("none")}) ==
        "--schedule-file: " + here.file("none") + " cannot be read: No such file or directory");
}

TEST_CASE("chunks fit the schedule, and a cut makes a slice for each") {
  CHECK(slices_of(config_of({"--schedule", "zb-v"}).pipeline) == 4);
  CHECK(slices_of(config_of({"--schedule", "interleaved-1f1b", "--chunks", "3", "--stages", "2"})
                      .pipeline) == 6);
  CHECK(config_of({"--schedule", "zb-v", "--cut", "a,b,c,d,e"}).pipeline.stages == 3);
  CHECK(error_of({"--schedule", "zb-h1", "--chunks", "2"}) ==
        "--chunks: chunks of zb-h1 = 2 is out of range: 1 (--schedule zb-h1)");
  CHECK(
      error_of({"--schedule", "zb-v", "--cut", "a,b"}) ==
      "--cut: a cut at 2 layers (--cut a, b) makes 3 slices, not 4 (pipeline.stages = 2 by "
      "default) of 2 chunks each; name one layer less than slices, or none to have them balanced");
}

TEST_CASE("any schedule and any plan is predicted and cut automatically") {
  const folder here;
  const std::string plan = here.write("plan.txt",
                                      "schedule mine microbatches 1\n"
                                      "stage 0 cap 1: F0 B0\n");
  CHECK(config_of({"--partition", "auto", "--schedule", "zb-v"}).pipeline.schedule == "zb-v");
  CHECK(config_of({"--micro-batches", "auto", "--schedule-file", plan}).pipeline.plan);
  CHECK(
      config_of({"--predict", "--schedule", "interleaved-1f1b", "--chunks", "3"}).observe.predict);
}

TEST_CASE("a profile that is to be saved alone needs a file that can be written") {
  const folder here;
  CHECK(error_of({"--profile-only"}) ==
        "--profile-only: needs a file to write to; name one with --save-profile");
  const auto c = config_of({"--save-profile", here.file("p.toml"), "--profile-only"});
  CHECK(c.observe.save_profile == here.file("p.toml"));
  CHECK(c.observe.profile_only);
  CHECK(error_of({"--save-profile", here.file("no/p.toml")}).find("does not exist") !=
        std::string::npos);
}

TEST_CASE("a secret's file is its owner's alone, and of a good length") {
  const folder here;
  const std::string file = here.write_secret("secret");
  const auto refusal = [&file] {
    const std::string why = error_of({"--secret-file", file});
    CHECK(why.find("good length") == std::string::npos);  // what is in it
    const std::string begin = "--secret-file: " + file + " cannot hold the secret: ";
    return why.starts_with(begin) ? why.substr(begin.size()) : why;
  };
  for (const unsigned mode : {0640U, 0604U, 0610U}) {
    std::filesystem::permissions(file, std::filesystem::perms(mode));
    CHECK(refusal().starts_with("others may use it (mode 06"));
  }
  std::filesystem::permissions(file, std::filesystem::perms(0600));
  CHECK(refusal() == "accepted");
  here.write("secret", "fifteen bytes..\n\n");
  CHECK(refusal() == "holds 15 bytes; a secret has at least 16");
  here.write("secret", std::string(4097, 'x'));
  CHECK(refusal() == "is too long; a secret has at most 4096 bytes");
  std::filesystem::remove(file);
  CHECK(refusal() == "No such file or directory");
  std::filesystem::create_directory(file);
  CHECK(refusal() == "is not a regular file");
}

TEST_CASE("a secret is read without the line end, and from a pipe as it is") {
  const folder here;
  const auto text_of = [](const auto& secret) {
    REQUIRE(secret);
    const auto bytes = secret->bytes();
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  CHECK(text_of(read_secret_file(here.write_secret("secret"))) == "a secret of good length");
  const std::string raw = "ends in white space \n";
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  REQUIRE(::write(ends[1], raw.data(), raw.size()) == static_cast<ssize_t>(raw.size()));
  ::close(ends[1]);
  CHECK(text_of(read_inherited_secret(ends[0])) == raw);
  CHECK(::fcntl(ends[0], F_GETFD) == -1);
  CHECK_FALSE(read_inherited_secret(ends[0]));
}

TEST_CASE("files that cannot be read or written are named before a run starts") {
  const folder here;
  const std::string absent = here.file("absent");
  const std::string plain = here.write("plain", "x");
  const std::string root = std::filesystem::path(plain).parent_path().string();
  CHECK(error_of({"--init", absent}) ==
        "--init: " + absent + " cannot be read: No such file or directory");
  CHECK(error_of({"--init", root}) == "--init: " + root + " cannot be read: is a directory");
  CHECK(error_of({"--save", absent + "/w"}) ==
        "--save: " + absent + "/w cannot be written: the directory " + absent + " does not exist");
  CHECK(error_of({"--save", plain + "/w"}) ==
        "--save: " + plain + "/w cannot be written: " + plain + " is not a directory");
  CHECK(error_of({"--json", root}) == "--json: " + root + " cannot be written: is a directory");
  CHECK(config_of({"--json", plain}).observe.json == plain);
  CHECK(config_of({"--json", "/dev/null"}).observe.json == "/dev/null");
  const std::string file = here.write("run.toml", "[train]\nsave = \"" + root + "\"\n");
  CHECK(error_of({"--config", file}) ==
        file + ":2: train.save: " + root + " cannot be written: is a directory");
}

TEST_CASE("a wrong file gives one line with file, line, key and what is allowed") {
  struct row {
    std::string toml;
    std::string text;
  };
  const auto [toml, text] = GENERATE(values<row>({
      {"[pipeline]\nstagse = 2\n",
       "run.toml:2: pipeline.stagse: unknown key; did you mean stages?; allowed: stages, cut, "
       "partition, memory_mib, recompute, schedule, schedule_file, chunks, micro_batches, credits, "
       "threads_per_stage, stages_in"},
      {"[link]\nqqqq = 2\n",
       "run.toml:2: link.qqqq: unknown key; allowed: transport, listen, "
       "secret_file"},
      {"[link]\nlr = 2\n",
       "run.toml:2: link.lr: unknown key; did you mean lr in [optimizer]?; allowed: transport, "
       "listen, secret_file"},
      {"\n[pipline]\nstages = 2\n",
       "run.toml:2: [pipline]: unknown table; did you mean [pipeline]?; allowed: pipeline, model, "
       "transformer, optimizer, data, train, link, observe"},
      {"[[nodes]]\nhost = 'a'\n",
       "run.toml:1: [nodes]: unknown table; allowed: pipeline, model, transformer, optimizer, "
       "data, "
       "train, link, "
       "observe"},
      {"lr = 0.1\n",
       "run.toml:1: lr: unknown key outside of a table; did you mean lr in [optimizer]?"},
      {"zzz = 0.1\n", "run.toml:1: zzz: unknown key outside of a table"},
      {"pipeline = 3\n", "run.toml:1: pipeline: expected a table, got the integer 3"},
      {"[[pipeline]]\n", "run.toml:1: pipeline: expected a table, got an array"},
      {"[pipeline]\nstages = \"two\"\n",
       "run.toml:2: pipeline.stages: expected an integer, got the text \"two\"; allowed: 1 to "
       "1024"},
      {"[pipeline]\nstages = 2.5\n",
       "run.toml:2: pipeline.stages: expected an integer, got the number 2.5; allowed: 1 to 1024"},
      {"[pipeline]\nstages = [2]\n",
       "run.toml:2: pipeline.stages: expected an integer, got an array; allowed: 1 to 1024"},
      {"[pipeline]\nstages = {a = 1}\n",
       "run.toml:2: pipeline.stages: expected an integer, got a table; allowed: 1 to 1024"},
      {"[train]\nseed = 2020-01-01\n",
       "run.toml:2: train.seed: expected an integer, got a date or time; allowed: 0 or more"},
      {"[train]\neval = 1\n",
       "run.toml:2: train.eval: expected a boolean, got the integer 1; allowed: true, false"},
      {"[optimizer]\nlr = true\n",
       "run.toml:2: optimizer.lr: expected a number, got the boolean true; allowed: above 0"},
      {"[optimizer]\nlr = nan\n",
       "run.toml:2: optimizer.lr: nan is not a finite number; allowed: above 0"},
      {"[optimizer]\nlr = -1\n", "run.toml:2: optimizer.lr: -1 is out of range; allowed: above 0"},
      {"[optimizer]\ndampening = 1.5\n",
       "run.toml:2: optimizer.dampening: 1.5 is out of range; allowed: 0 to 1"},
      {"[pipeline]\ncut = [\"a\", 3]\n",
       "run.toml:2: pipeline.cut: expected a list of texts, got the integer 3 as element 2"},
      {"[pipeline]\ncut = 3\n",
       "run.toml:2: pipeline.cut: expected a list of texts, got the integer 3"},
      {"[pipeline]\ncut = [\"\"]\n", "run.toml:2: pipeline.cut: name 1 of the list is empty"},
      {"[model]\nname = 3\n", "run.toml:2: model.name: expected a text, got the integer 3"},
      {"[model]\nprecision = \"bf1\"\n",
       "run.toml:2: model.precision: unknown value \"bf1\"; did you mean \"bf16\"?; allowed: fp32, "
       "bf16"},
  }));
  CHECK(toml_error(toml) == text);
}

TEST_CASE("of several mistakes the first by line is reported") {
  CHECK(toml_error("[train]\nseed = -1\n[data]\nthreads = 0\n") ==
        "run.toml:2: train.seed: -1 is out of range; allowed: 0 or more");
}

TEST_CASE("text that is not TOML is refused with its line") {
  CHECK(toml_error("[train]\nseed = \n").starts_with("run.toml:2: not valid TOML: "));
  CHECK(toml_error("[train]\nseed = 1\nseed = 2\n").starts_with("run.toml:3: not valid TOML: "));
  CHECK(toml_error("\x01\xff").starts_with("run.toml:1: not valid TOML: "));
}

TEST_CASE("two rivals in one file are refused") {
  const folder here;
  const std::string file = here.write("run.toml", "[train]\nepochs = 1\nsteps = 2\n");
  CHECK(error_of({"--config", file}) == file + ":3: train.steps: given together with " + file +
                                            ":2: train.epochs; give one of them");
}

TEST_CASE("every option is complete, and named once") {
  std::set<std::string> names;
  std::set<std::string_view> flags{"--config", "--help", "--version", "--join", "--node-name"};
  for (const option& entry : option_table()) {
    INFO(entry.name());
    CHECK(names.insert(entry.name()).second);
    CHECK(flags.insert(entry.flag).second);
    CHECK((entry.off_flag.empty() || flags.insert(entry.off_flag).second));
    CHECK(entry.flag.starts_with("--"));
    CHECK_FALSE(entry.help.empty());
    CHECK(entry.value_name.empty() == std::holds_alternative<switch_field>(entry.field));
  }
  for (const option& entry : option_table())
    CHECK((entry.rival.empty() || names.contains(std::string(entry.rival))));
}

TEST_CASE("every default is a value that its own option accepts") {
  for (const option& entry : option_table()) {
    const std::string usual = default_text(entry);
    if (usual.empty()) continue;
    INFO(entry.name() << " = " << usual);
    CHECK(parse_value(entry, usual));
  }
}

TEST_CASE("help names every flag, its allowed words and its default") {
  const auto asked = read({"--help"});
  REQUIRE(asked);
  const std::string text = std::get<message_text>(*asked).text;
  for (const option& entry : option_table()) {
    INFO(entry.name());
    CHECK(text.find(std::string(entry.flag)) != std::string::npos);
    CHECK(text.find(std::string(entry.help)) != std::string::npos);
  }
  CHECK(text.find("--eval, --no-eval") != std::string::npos);
  CHECK(text.find("zb-h2, zb-v) [1f1b]") != std::string::npos);
  CHECK(text.find("--config FILE") != std::string::npos);
  CHECK(text.find("--join") == std::string::npos);
  CHECK(text.find("{false}") == std::string::npos);
}

TEST_CASE("a partition is a word or cuts, and the last one given counts") {
  CHECK(config_of({}).pipeline.partition == partition::even);
  CHECK(config_of({"--partition", "auto"}).pipeline.partition == partition::automatic);
  const auto cut = config_of({"--partition", "layer2,layer3"}).pipeline;
  CHECK(cut.partition == partition::cuts);
  CHECK(cut.cut == std::vector<std::string>{"layer2", "layer3"});
  CHECK(cut.stages == 3);
  const folder here;
  const std::string file = here.write("run.toml", "[pipeline]\ncut = [\"layer3\"]\n");
  const auto over = config_of({"--config", file, "--partition", "auto"}).pipeline;
  CHECK(over.partition == partition::automatic);
  CHECK(over.cut.empty());
  CHECK(error_of({"--partition", "auto", "--cut", "layer3"}).find("give one of them") !=
        std::string::npos);
  CHECK(error_of({"--partition", "layer2,layer3", "--stages", "2"}).find("makes 3 stages, not 2") !=
        std::string::npos);
  CHECK(error_of({"--memory-mib", "100"}).find("--partition auto") != std::string::npos);
  CHECK(config_of({"--memory-mib", "100", "--partition", "auto"}).pipeline.memory_mib == 100);
}

TEST_CASE("the number of micro-batches may be left open, in the file too") {
  CHECK(config_of({"--micro-batches", "auto"}).pipeline.micro_batches == 0);
  CHECK(config_of({"--micro-batches", "auto", "--batch-size", "1"}).pipeline.micro_batches == 0);
  CHECK(error_of({"--micro-batches", "many"}) ==
        "--micro-batches: \"many\" is not an integer; allowed: auto, 1 to 16384");
  const folder here;
  const std::string file = here.write("run.toml", "[pipeline]\nmicro_batches = \"auto\"\n");
  CHECK(config_of({"--config", file}).pipeline.micro_batches == 0);
}

TEST_CASE("a program takes its own tables only, and has defaults of its own") {
  program_info other = trainer;
  other.foreign_tables = {"transformer"};
  other.defaults.train.batch_size = 7;
  other.defaults.optimizer.options = {{"lr", 0.25}};
  const auto read_other = [&](const std::vector<const char*>& words) {
    return read_command_line(other, words);
  };
  const auto plain = read_other({});
  REQUIRE(plain);
  CHECK(std::get<trainer_config>(*plain).train.batch_size == 7);
  CHECK(std::get<trainer_config>(*plain).optimizer.options.at("lr") == 0.25);
  const auto adam = read_other({"--optimizer", "adam"});
  REQUIRE(adam);
  CHECK(std::get<trainer_config>(*adam).optimizer.options.at("lr") == 1e-3);
  const auto help = read_other({"--help"});
  CHECK(std::get<message_text>(*help).text.find("--heads") == std::string::npos);
  CHECK(std::get<message_text>(*help).text.find("Samples of a step [7]") != std::string::npos);
  CHECK(std::get<message_text>(*help).text.find("[0.25]") != std::string::npos);
  REQUIRE_FALSE(read_other({"--heads", "4"}));
  CHECK(read_other({"--heads", "4"}).error().text.find("unknown flag") != std::string::npos);
  const folder here;
  const std::string file = here.write("run.toml", "[transformer]\nheads = 4\n");
  const auto refused = read_other({"--config", file.c_str()});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().text.find(":2: transformer.heads: is not for trainer") !=
        std::string::npos);
  CHECK(config_of({"--heads", "8"}).transformer.heads == 8);
  CHECK(error_of({"--heads", "3"}).find("3 heads") != std::string::npos);
}

TEST_CASE("the version is told on request") {
  const auto asked = read({"--version"});
  REQUIRE(asked);
  CHECK(std::get<message_text>(*asked).text == "trainer 1.2.3\n");
}

TEST_CASE("a child reads back what its parent meant") {
  const node_options meant{"127.0.0.1:4711", "stage-1", transport::shm, true, 3, "some/file"};
  const auto asked = read(to_arguments(meant));
  REQUIRE(asked);
  CHECK(std::get<node_options>(*asked) == meant);
}

TEST_CASE("a child's wrong flags are refused") {
  CHECK(error_of({"--join", "here", "--node-name", "a"}) ==
        "--join: \"here\" is not an address; allowed: HOST:PORT");
  CHECK(error_of({"--join", "[::1]:1", "--node-name", ""}) == "--node-name: is empty");
  CHECK(error_of({"--join", "[::1]:1", "--node-name", "a", "--link", "loopback"}) ==
        "--link: unknown value \"loopback\"; allowed: auto, tcp, shm");
  for (const auto& words :
       {std::vector<std::string>{"--join", "h:1"}, std::vector<std::string>{"--join"},
        std::vector<std::string>{"--join", "h:1", "--node-name", "a", "--lr", "1"}})
    CHECK(error_of(words).starts_with("--join: a stage process takes --join HOST:PORT, "));
}

TEST_CASE("the sample configuration is accepted") {
  const trainer_config c =
      config_of({"--config", TROUPE_SOURCE_DIR "/apps/resnet_pipeline/fashion_mnist.toml"});
  CHECK(c.model.name == "resnet50");
  CHECK(c.pipeline.stages == 2);
  CHECK(c.train.steps.has_value());
}

TEST_CASE("a near miss is found by edits, swaps and beginnings") {
  const std::vector<std::string_view> known{"stages", "schedule", "micro_batches", "lr"};
  CHECK(nearest("stagse", known) == "stages");
  CHECK(nearest("Stages", known) == "stages");
  CHECK(nearest("micro-batches", known) == "micro_batches");
  CHECK(nearest("sched", known) == "schedule");
  CHECK(nearest("l", known) == "lr");
  CHECK(nearest("s", known) == std::nullopt);
  CHECK(nearest("elephants", known) == std::nullopt);
  CHECK(nearest("", known) == std::nullopt);
  CHECK(nearest(std::string(100000, 's'), known) == std::nullopt);
}

TEST_CASE("threads are shared out so that stages never exceed the cores") {
  const auto threads = [](std::uint32_t stages, int given, unsigned cores) {
    pipeline_config pipeline;
    pipeline.stages = stages;
    pipeline.threads_per_stage = given;
    return threads_per_stage(pipeline, cores);
  };
  CHECK(threads(2, 0, 2) == 1);
  CHECK(threads(2, 0, 9) == 4);
  CHECK(threads(8, 0, 2) == 1);
  CHECK(threads(2, 0, 0) == 1);
  CHECK(threads(2, 3, 2) == 3);
}

TEST_CASE("a linear learning rate falls to zero over the run, a constant one stays") {
  optimizer_config optimizer;
  optimizer.options["lr"] = 0.5;
  CHECK(learning_rate(optimizer, 7, 10) == 0.5);
  optimizer.schedule.curve = lr_schedule::linear;
  CHECK(learning_rate(optimizer, 1, 10) == 0.5);
  CHECK_THAT(learning_rate(optimizer, 6, 10), Catch::Matchers::WithinULP(0.25, 2));
  CHECK_THAT(learning_rate(optimizer, 10, 10), Catch::Matchers::WithinULP(0.05, 8));
  CHECK(learning_rate(optimizer, 11, 10) == 0);
  CHECK(learning_rate(optimizer, 99, 10) == 0);
}

TEST_CASE("a parameter server's trainer has its own table and defaults, and no pipeline's") {
  trainer_config defaults;
  defaults.model.name = "resnet18";
  defaults.pipeline.micro_batches = 1;
  const program_info server{"server", "1.2.3", "Serves.", {}, defaults, &server_option_table()};
  const auto read_server = [&](const std::vector<const char*>& words) {
    return read_command_line(server, words);
  };
  auto expected = defaults;
  expected.optimizer = config_of({}).optimizer;  // complete
  CHECK(std::get<trainer_config>(*read_server({})) == expected);
  expected.server = {.workers = 8,
                     .shards = 3,
                     .mode = server_mode::asynchronous,
                     .staleness = 7,
                     .bf16_gradients = true,
                     .threads_per_worker = 2,
                     .threads_per_shard = 4};
  const auto given =
      read_server({"--workers", "8", "--shards", "3", "--mode", "asynchronous", "--staleness", "7",
                   "--bf16-gradients", "--threads-per-worker", "2", "--threads-per-shard", "4"});
  REQUIRE(given);
  CHECK(std::get<trainer_config>(*given) == expected);
  const auto refuses = [&](const std::vector<const char*>& words, const std::string& why) {
    const auto refused = read_server(words);
    REQUIRE(!refused);
    CHECK_THAT(refused.error().text, Catch::Matchers::ContainsSubstring(why));
  };
  for (const char* const flag :
       {"--stages=2", "--heads=2", "--verify", "--verify-tolerance=1", "--on-nan=skip", "--predict",
        "--accumulate=2", "--profile-only"}) {
    const std::string_view word(flag);
    refuses({flag}, std::string(word.substr(0, word.find('='))) + ": unknown flag");
  }
  refuses({"--workers", "6"}, "--workers: 6 workers (--workers 6) cannot have equal shares of a");
  refuses({"--link", "loopback"}, "--link: loopback cannot connect processes");
  CHECK_THAT(error_of({"--shards", "2"}), Catch::Matchers::ContainsSubstring("unknown flag"));
  const folder here;
  const auto file = here.write("run.toml", "[server]\nshards = 5\n[pipeline]\nstages = 2\n");
  refuses({"--config", file.c_str()}, "[pipeline]: unknown table");
  for (const char* const ours : {TROUPE_SOURCE_DIR "/apps/parameter_server/fashion_mnist.toml",
                                 TROUPE_SOURCE_DIR "/apps/parameter_server/clicks.toml"})
    CHECK(read_server({"--config", ours}));
}
