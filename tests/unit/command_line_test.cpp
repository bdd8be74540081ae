#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cluster/config/command_line.hpp"
#include "cluster/config/option.hpp"
#include "config_fixture.hpp"

using namespace troupe;
using namespace troupe::cluster;
using namespace troupe::cluster::testing;

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
                                      "--init-skip",
                                      "fc.*,*.bias",
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
  CHECK(c.model == model_config{"resnet18",
                                7,
                                init,
                                memory_format::channels_last,
                                engine::precision::bf16,
                                {"fc.*", "*.bias"}});
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
  CHECK(c.train == train_config{32, 12, std::nullopt, engine::loss_kind::mse, 9, false, 5,
                                here.file("s"), true, 2, true, 0.25});
  CHECK(c.link == link_config{transport::loopback, "[::1]:80", network::sealed, secret});
  CHECK(c.observe == observe_config{here.file("j"), false, true, true});
  CHECK(config_of({"--on-nan", "skip"}).train.on_nan == nan_policy::skip);
}

TEST_CASE("the loss scale is dynamic for fp16, and none for others, unless one is given") {
  const auto scale = [](const std::vector<std::string>& words) {
    return loss_scale_of(config_of(words));
  };
  CHECK(scale({}) == 1);
  CHECK(scale({"--precision", "bf16"}) == 1);
  CHECK(scale({"--precision", "fp16"}) == 0);
  CHECK(scale({"--precision", "fp16", "--loss-scale", "1"}) == 1);
  CHECK(scale({"--precision", "fp16", "--loss-scale", "512"}) == 512);
  CHECK(scale({"--loss-scale", "dynamic"}) == 0);
  CHECK(scale({"--loss-scale", "1.5"}) == 1.5);
  CHECK(config_of({"--precision", "fp16"}).train.loss_scale_interval == 2000);
  CHECK(config_of({"--loss-scale", "dynamic", "--loss-scale-interval", "5"})
            .train.loss_scale_interval == 5);
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
      {{"--precision", "int4"}, "--precision: unknown value \"int4\"; allowed: fp32, bf16, fp16"},
      {{"--loss-scale", "0"}, "--loss-scale: 0 is out of range; allowed: dynamic, 1 to 16777216"},
      {{"--loss-scale", "2e7"},
       "--loss-scale: 2e+07 is out of range; allowed: dynamic, 1 to 16777216"},
      {{"--loss-scale", "nan"},
       "--loss-scale: nan is not a finite number; allowed: dynamic, 1 to 16777216"},
      {{"--loss-scale", "dynamical"},
       "--loss-scale: \"dynamical\" is not a number; allowed: dynamic, 1 to 16777216"},
      {{"--loss-scale-interval", "5"},
       "--loss-scale-interval: is of a dynamic loss scale only (--loss-scale dynamic)"},
      {{"--loss-scale-interval", "0", "--loss-scale", "dynamic"},
       "--loss-scale-interval: 0 is out of range; allowed: 1 to 1073741824"},
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
  const node_options meant{"127.0.0.1:4711", "stage-1", transport::tcp, network::trusted, true, 3,
                           "some/file"};
  const auto asked = read(to_arguments(meant));
  REQUIRE(asked);
  CHECK(std::get<node_options>(*asked) == meant);
}

TEST_CASE("a child's wrong flags are refused") {
  CHECK(error_of({"--join", "here", "--node-name", "a"}) ==
        "--join: \"here\" is not an address; allowed: HOST:PORT, unix:PATH");
  CHECK(error_of({"--join", "[::1]:1", "--node-name", ""}) == "--node-name: is empty");
  CHECK(error_of({"--join", "[::1]:1", "--node-name", "a", "--link", "loopback"}) ==
        "--link: unknown value \"loopback\"; allowed: auto, tcp, shm");
  for (const auto& words :
       {std::vector<std::string>{"--join", "h:1"}, std::vector<std::string>{"--join"},
        std::vector<std::string>{"--join", "h:1", "--node-name", "a", "--lr", "1"}})
    CHECK(error_of(words).starts_with("--join: a stage process takes --join ADDRESS, "));
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
  for (const char* const flag : {"--stages=2", "--heads=2", "--verify", "--verify-tolerance=1",
                                 "--on-nan=skip", "--predict", "--init-skip=fc.*", "--accumulate=2",
                                 "--loss-scale=2", "--loss-scale-interval=2", "--profile-only"}) {
    const std::string_view word(flag);
    refuses({flag}, std::string(word.substr(0, word.find('='))) + ": unknown flag");
  }
  refuses({"--workers", "6"}, "--workers: 6 workers (--workers 6) cannot have equal shares of a");
  refuses({"--staleness", "2"},
          "--staleness: is of asynchronous workers only (server.mode = synchronous by default); "
          "leave it out, or set --mode asynchronous");
  refuses({"--link", "loopback"}, "--link: loopback cannot connect processes");
  CHECK_THAT(error_of({"--shards", "2"}), Catch::Matchers::ContainsSubstring("unknown flag"));
  const folder here;
  const auto file = here.write("run.toml", "[server]\nshards = 5\n[pipeline]\nstages = 2\n");
  refuses({"--config", file.c_str()}, "[pipeline]: unknown table");
  for (const char* const ours : {TROUPE_SOURCE_DIR "/apps/parameter_server/fashion_mnist.toml",
                                 TROUPE_SOURCE_DIR "/apps/parameter_server/clicks.toml"})
    CHECK(read_server({"--config", ours}));
}
