#include <array>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cluster/config/option.hpp"
#include "cluster/config/option_fields.hpp"
#include "cluster/config/sources/command_line.hpp"
#include "cluster/training/parameter_server/settings.hpp"
#include "tests/unit/cluster/config_fixture.hpp"
#include "tests/words.hpp"

using namespace troupe;
using namespace troupe::cluster;
using namespace troupe::cluster::testing;
using tests::operator+;
using tests::split_words;

namespace {

/// A program's own table.
struct net_settings {
  std::int64_t heads = 4;
  std::int64_t width = 128;
  double rate = 0;

  bool operator==(const net_settings&) const = default;
};

std::vector<option> net_options() {
  using fields::integer, fields::own;
  return {{"net", "heads", "--heads", "", "N", "Heads of the net",
           integer(own(&net_settings::heads), 1, 64), ""},
          {"net", "width", "--width", "", "N", "Width of the net",
           integer(own(&net_settings::width), 1, 1024), ""}};
}

result<void> check_net(const draft& whole) {
  const auto net = whole.config.own.of<net_settings>();
  if (net.width % net.heads == 0) return {};
  const auto heads = std::to_string(net.heads);
  const auto width = std::to_string(net.width);
  return fail(errc::bad_config, blame(whole, "net.heads", "net.width") + heads + " heads" +
                                    source(whole, "net.heads", heads) +
                                    " do not divide a width of " + width +
                                    source(whole, "net.width", width));
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
  const trainer_config c = config_of(
      split_words("--model resnet18 --classes 7 --stages 3 --cut layer3,layer4.1 "
                  "--schedule gpipe --micro-batches 8 --credits 3 --batch-size 32 --steps "
                  "12 --data folder:x --image-size 48 --data-threads 3 --strict "
                  "--no-shuffle --loss mse --optimizer qhm --lr 0.5 --momentum 0.25 --nu "
                  "0.125 --weight-decay 1e-4 --weight-decay-type direct --lr-schedule "
                  "one-cycle --lr-warmup 3 --lr-end 0.25 --lr-step-every 4 "
                  "--lr-step-factor 0.5 --lr-power 3 --lr-peak 0.125 --lr-start 0.75") +
      tests::words{"--groups", "*.bias weight_decay=0,bn* nu=1"} +
      split_words("--clip-value 2 --clip-norm 1.5 --accumulate 2 --save-state --seed 9 "
                  "--threads-per-stage 2 --memory-format channels_last --precision bf16") +
      tests::words{"--init", init} + split_words("--init-skip fc.*,*.bias") +
      tests::words{"--save", here.file("s"), "--json", here.file("j")} +
      split_words("--no-eval --eval-every 5 --link loopback --stages-in threads --listen "
                  "[::1]:80") +
      tests::words{"--secret-file", secret} +
      split_words("--recompute layer3,layer4 --verify --verify-tolerance 0.25 --predict "
                  "--no-progress --verbose"));
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
  CHECK(c.data == data_config{"folder:x", "", 48, 3, true, false});
  CHECK(c.train == train_config{32, 12, std::nullopt, "mse", 9, false, 5, here.file("s"), true, 2,
                                0, norm_scope::local, true, 0.25});
  CHECK(c.link == link_config{transport::loopback, "[::1]:80", network::sealed, secret});
  CHECK(c.observe == observe_config{here.file("j"), false, true, true});
  CHECK(config_of({"--on-nan", "skip"}).train.on_nan == nan_policy::skip);
  CHECK(config_of({"--on-fault", "recover"}).train.on_fault == fault_policy::recover);
}

TEST_CASE("the loss scale is dynamic for fp16, and none for others, unless one is given") {
  const auto scale = [](const std::vector<std::string>& words) {
    const auto config = config_of(words);
    return loss_scale_of(config.model, config.train);
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
       "--loss-scale-interval: applies to a dynamic loss scale only (--loss-scale dynamic)"},
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
  const std::string text = std::get<message_text>(read({"--help"}).value()).text;
  for (const option& entry : option_table(trainer)) {
    if (entry.flag.empty()) continue;  // of files alone
    INFO(entry.name());
    CHECK(text.find(std::string(entry.flag)) != std::string::npos);
    CHECK(text.find(std::string(entry.help)) != std::string::npos);
  }
  CHECK(text.find("--eval, --no-eval") != std::string::npos);
  CHECK(text.find("zb-h2, zb-v) [1f1b]") != std::string::npos);
  CHECK(text.find("--config FILE") != std::string::npos);
  CHECK(text.find("--join ") == std::string::npos);
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

TEST_CASE("a program has tables and defaults of its own, which others do not take") {
  program_info other = trainer;
  other.own = net_options();
  other.check = check_net;
  other.defaults.train.batch_size = 7;
  other.defaults.optimizer.options = {{"lr", 0.25}};
  other.defaults.own.of<net_settings>().width = 12;
  const auto plain = config_of({}, other);
  CHECK(plain.train.batch_size == 7);
  CHECK(plain.optimizer.options.at("lr") == 0.25);
  CHECK(plain.own.of<net_settings>() == net_settings{.heads = 4, .width = 12});
  CHECK(config_of({"--optimizer", "adam"}, other).optimizer.options.at("lr") == 1e-3);
  const auto help = std::get<message_text>(*read({"--help"}, other)).text;
  CHECK(help.find("--heads N") != std::string::npos);
  CHECK(help.find("Width of the net [12]") != std::string::npos);
  CHECK(help.find("Samples per step [7]") != std::string::npos);
  CHECK(help.find("[0.25]") != std::string::npos);
  const folder here;
  const std::string file = here.write("run.toml", "[net]\nheads = 6\nwidth = 18\n");
  CHECK(config_of({"--config", file, "--heads", "9"}, other).own.of<net_settings>() ==
        net_settings{.heads = 9, .width = 18});
  CHECK(error_of({"--config", file, "--heads", "5"}, other) ==
        "--heads: 5 heads (--heads 5) do not divide a width of 18 (net.width = 18 in " + file +
            ":3:9)");
  CHECK(error_of({"--heads", "0"}, other) == "--heads: 0 is out of range; allowed: 1 to 64");
  CHECK(error_of({"--heads", "4"}).find("--heads: unknown flag") == 0);
  CHECK(error_of({"--config", file}) ==
        file +
            ":1:2: [net]: unknown table; allowed: pipeline, model, optimizer, data, train, "
            "checkpoint, link, "
            "observe, cluster, node");
}

TEST_CASE("settings of a program's own are values") {
  own_settings one;
  own_settings other;
  CHECK(one.of<net_settings>() == net_settings{});
  CHECK(one == other);  // defaults are what nobody has set
  one.of<net_settings>().heads = 2;
  CHECK_FALSE(one == other);
  CHECK_FALSE(other == one);
  other = one;
  CHECK(one == other);
  other.of<net_settings>().heads = 3;
  CHECK(one.of<net_settings>().heads == 2);
}

TEST_CASE("two options of a program cannot have one flag") {
  program_info wrong = trainer;
  wrong.own = {{"net", "rate", "--lr", "", "X", "Rate",
                fields::number(fields::own(&net_settings::rate), 0, 1), ""}};
  CHECK(error_of({}, wrong) ==
        "the program has two options with the flag --lr; of optimizer.lr it needs another one");
}

TEST_CASE("a configuration names optimizers, losses, schedules and data of a program's own") {
  program_info other = trainer;
  auto mine = optimizers::built_in().find("sgd").value();
  mine.name = "mine";
  static constexpr std::array<optimizers::option_rule, 2> rules{
      optimizers::option_rule{.name = "lr", .fallback = 0.5},
      optimizers::option_rule{.name = "bite", .fallback = 3, .most = 7, .help = "How hard"}};
  mine.rules = {rules.begin(), rules.end()};
  mine.defaults = {{"lr", 0.5}, {"bite", 3}};
  mine.check = [](const optimizers::options&) -> result<void> { return {}; };
  other.known.optimizers.add(mine);
  other.known.losses.add("hinge", engine::mse_loss);
  other.known.schedules.add("my-1f1b",
                            {[](std::uint32_t stages, std::uint32_t parts, std::uint32_t) {
                              return engine::one_f_one_b(stages, parts);
                            }});
  other.known.data.add("clock", {"clock:HANDS", nullptr});
  const folder here;
  const auto file = here.write("run.toml",
                               "[optimizer]\nname = \"mine\"\nbite = 5\n[train]\nloss = "
                               "\"hinge\"\n[pipeline]\nschedule = \"my-1f1b\"\n");
  const auto c = config_of({"--config", file}, other);
  CHECK(c.optimizer.options == std::map<std::string, double>{{"bite", 5}, {"lr", 0.5}});
  CHECK(c.train.loss == "hinge");
  CHECK(slices_of(c.pipeline, other.known.schedules) == 2);
  CHECK(config_of({"--optimizer", "mine", "--bite", "4"}, other).optimizer.options.at("bite") == 4);
  CHECK(error_of({"--optimizer", "mine", "--bite", "8"}, other) ==
        "--bite: 8 is out of range; allowed: 0 to 7");
  CHECK(error_of({"--bite", "4"}, other).find("--bite: optimizer 'sgd' has no option 'bite'") == 0);
  CHECK(error_of({"--loss", "hinges"}, other) ==
        "--loss: unknown value \"hinges\"; did you mean \"hinge\"?; allowed: cross-entropy, mse, "
        "hinge");
  const auto help = std::get<message_text>(*read({"--help"}, other)).text;
  for (const char* const part : {"How hard (mine)", "zb-v, my-1f1b", "or clock:HANDS", "qhm, "})
    CHECK_THAT(help, Catch::Matchers::ContainsSubstring(part));
  CHECK(error_of({"--optimizer", "mine"}).find("unknown value") != std::string::npos);
  CHECK(error_of({"--loss", "hinge"}).find("unknown value") != std::string::npos);
  CHECK(error_of({"--schedule", "my-1f1b"}).find("unknown value") != std::string::npos);
}

TEST_CASE("the version is told on request") {
  CHECK(std::get<message_text>(read({"--version"}).value()).text == "trainer 1.2.3\n");
}

TEST_CASE("a child reads back what its parent meant") {
  const node_options meant{.join = "127.0.0.1:4711",
                           .name = "stage-1",
                           .transport = transport::tcp,
                           .network = network::trusted,
                           .listen = "10.0.0.0/8",
                           .verbose = true,
                           .secret_descriptor = 3,
                           .secret_file = "some/file"};
  CHECK(std::get<node_options>(read(to_arguments(meant)).value()) == meant);
}

TEST_CASE("a child's wrong flags are refused") {
  for (const std::string wrong : {"here", "10.0.0.1", "10.0.0.1:99999", "10.0.0.1:0", "10.0.0.1:x"})
    CHECK(error_of({"--join", wrong, "--node-name", "a"}) ==
          "--join (ADDRESS of troupe join): \"" + wrong +
              "\" is not an address at which a trainer listens; allowed: HOST:PORT with a port "
              "from 1 to 65535, unix:PATH");
  CHECK(error_of({"--join", "[::1]:1", "--node-name", ""}) ==
        "--node-name (--name of troupe join): is empty; name a stage, such as stage-0");
  CHECK_THAT(error_of({"--join", "[fe80::1]:4711", "--node-name", "a"}),
             Catch::Matchers::ContainsSubstring("\"[fe80::1]:4711\" is a link-local address"));
  for (const std::string listen : {"0.0.0.0", "[::]:0", "fe80::1", "10.0.0.1/8", "10.0.0.1:x"})
    CHECK_THAT(error_of({"--join", "[::1]:1", "--node-name", "a", "--node-listen", listen}),
               Catch::Matchers::StartsWith("--node-listen (--listen of troupe join): \""));
  CHECK(error_of({"--join", "[::1]:1", "--node-name", "a", "--link", "loopback"}) ==
        "--link: unknown value \"loopback\"; allowed: auto, tcp, shm, mixed");
  for (const auto& words :
       {std::vector<std::string>{"--join", "h:1"}, std::vector<std::string>{"--join"},
        std::vector<std::string>{"--join", "h:1", "--node-name", "a", "--lr", "1"}})
    CHECK(error_of(words).starts_with("--join: a stage process takes --join ADDRESS, "));
}

TEST_CASE("a parameter server's trainer has its own table and defaults, and no pipeline's") {
  program_info plain{"server", "1.2.3", "Serves."};
  plain.defaults.model.name = "resnet18";
  const auto server = with_server(plain);
  auto expected = server.defaults;
  CHECK(expected.pipeline.micro_batches == 1);
  expected.optimizer = config_of({}).optimizer;  // complete
  CHECK(config_of({}, server) == expected);
  expected.own.of<server_settings>() = {.workers = 8,
                                        .shards = 3,
                                        .mode = engine::server_mode::asynchronous,
                                        .staleness = 7,
                                        .bf16_gradients = true,
                                        .threads_per_worker = 2,
                                        .threads_per_shard = 4};
  CHECK(config_of({"--workers", "8", "--shards", "3", "--mode", "asynchronous", "--staleness", "7",
                   "--bf16-gradients", "--threads-per-worker", "2", "--threads-per-shard", "4"},
                  server) == expected);
  const auto refuses = [&](const std::vector<std::string>& words, const std::string& why) {
    CHECK_THAT(error_of(words, server), Catch::Matchers::ContainsSubstring(why));
  };
  for (const option& entry : option_table(trainer)) {
    if (entry.flag.empty()) continue;  // of files alone
    const bool is_left_out =
        entry.of_stages || entry.table == "pipeline" || entry.table == "cluster";
    const auto why = error_of({entry.flag}, server);
    INFO(entry.name() << ": " << why);
    CHECK(is_left_out == (why.find(entry.flag + ": unknown flag") == 0));
  }
  for (const char* const flag :
       {"--stages", "--verify", "--verify-tolerance", "--on-nan", "--predict", "--save-profile",
        "--profile-only", "--memory-format", "--precision", "--data-threads", "--groups",
        "--clip-value", "--clip-norm", "--accumulate", "--save-state", "--loss-scale",
        "--loss-scale-interval"})
    refuses({flag}, std::string(flag) + ": unknown flag");
  refuses({"--workers", "6"}, "--workers: 6 workers (--workers 6) cannot have equal shares of a");
  refuses(
      {"--staleness", "2"},
      "--staleness: applies to asynchronous workers only (server.mode = synchronous by default); "
      "leave it out, or set --mode asynchronous");
  refuses({"--link", "loopback"}, "--link: loopback cannot connect processes");
  CHECK_THAT(error_of({"--shards", "2"}), Catch::Matchers::ContainsSubstring("unknown flag"));
  const folder here;
  const auto file = here.write("run.toml", "[server]\nshards = 5\n[pipeline]\nstages = 2\n");
  refuses({"--config", file}, "[pipeline]: unknown table");
  for (const char* const ours : {TROUPE_SOURCE_DIR "/apps/parameter_server/fashion_mnist.toml",
                                 TROUPE_SOURCE_DIR "/apps/parameter_server/clicks.toml"})
    CHECK(config_of({"--config", ours}, server).own.of<server_settings>().workers == 2);
}
