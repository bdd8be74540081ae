// Values that are each right and do not fit each other, or the machine.

#include <sys/stat.h>

#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/unit/cluster/config_fixture.hpp"

using namespace troupe;
using namespace troupe::cluster;
using namespace troupe::cluster::testing;

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
      {{"--clip-norm", "-1"}, "--clip-norm: -1 is out of range; allowed: 0 or more"},
      {{"--lr-peak", "1.5"}, "--lr-peak: 1.5 is out of range; allowed: 0 to 1"},
  }));
  CHECK(error_of(words) == text);
}

TEST_CASE("the number of stages follows from a cut unless it is given") {
  CHECK(config_of({"--cut", "a,b,c"}).pipeline.stages == 4);
  CHECK(config_of({"--cut", "a", "--stages", "2"}).pipeline.stages == 2);
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
           ":4:17) need as many samples, but a batch has 5 (--batch-size 5)"},
      {{"--cut", "a,b", "--stages", "2"},
       "--cut: a cut at 2 layers (--cut a, b) makes 3 stages, not 2 (--stages 2); name one layer "
       "less "
       "than stages, or none to have them balanced"},
      {{"--config", file, "--stages", "4"},
       "--stages: a cut at 2 layers (pipeline.cut = a, b in " + file +
           ":2:7) makes 3 stages, not 4 (--stages 4); name one layer less than stages, or none to "
           "have "
           "them balanced"},
      {{"--partition", "automatic", "--stages", "3"},
       "--partition: a cut at 1 layer (--partition automatic) makes 2 stages, not 3 (--stages 3); "
       "name one layer less than stages, or none to have them balanced; did you mean auto?"},
      {{"--init-skip", "fc.*"}, "--init-skip: skips tensors of a file; name one with --init"},
      {{"--link", "loopback"},
       "--link: loopback (--link loopback) cannot connect stages in processes (pipeline.stages_in "
       "= "
       "processes by default); allowed there: auto, tcp, shm, mixed"},
      {{"--config", file, "--link", "shm"},
       "--link: shm (--link shm) cannot connect stages in threads (pipeline.stages_in = threads "
       "in " +
           file + ":5:13); allowed there: auto, loopback"},
  };
  for (const row& wrong : rows) CHECK(error_of(wrong.words) == wrong.text);
}

TEST_CASE("a combination that a file gets wrong is named by file and line") {
  const folder here;
  const std::string file =
      here.write("run.toml", "[train]\nbatch_size = 4\n\n[pipeline]\nmicro_batches = 8\n");
  CHECK(error_of({"--config", file}) ==
        file + ":5:17: pipeline.micro_batches: 8 micro-batches (pipeline.micro_batches = 8 in " +
            file + ":5:17) need as many samples, but a batch has 4 (train.batch_size = 4 in " +
            file + ":2:14)");
}

TEST_CASE("only stages in processes can be ended for hanging") {
  CHECK(
      error_of({"--hang-timeout", "60", "--stages-in", "threads"}) ==
      "--hang-timeout: stages in threads (--stages-in threads) cannot be ended when they hang; put "
      "them in processes");
  CHECK(config_of({"--hang-timeout", "0", "--stages-in", "threads"}).train.hang_timeout == 0);
  CHECK(config_of({"--hang-timeout", "60", "--slow-after", "0.5"}).train.hang_timeout == 60);
  CHECK(config_of({"--slow-after", "0.5"}).observe.slow_after == 0.5);
}

TEST_CASE("understudies are for runs that go on after a loss") {
  CHECK(error_of({"--understudies", "1"}) ==
        "--understudies: understudies take the places of lost stages, and a run ends with the "
        "first that is lost; add --on-fault recover ([train] on_fault)");
  CHECK(config_of({"--understudies", "2", "--on-fault", "recover"}).cluster.understudies == 2);
  CHECK_THAT(error_of({"--understudies", "65", "--on-fault", "recover"}),
             Catch::Matchers::ContainsSubstring("0 to 64"));
}

TEST_CASE("checkpoints on the hosts' own disks need a folder") {
  CHECK(
      config_of({"--checkpoint-storage", "local", "--checkpoint-dir", "run1"}).checkpoint.storage ==
      checkpoint_storage::local);
  CHECK(config_of({}).checkpoint.storage == checkpoint_storage::shared);
  CHECK(error_of({"--checkpoint-storage", "local"}) ==
        "--checkpoint-storage: needs a folder for the checkpoints (--checkpoint-dir)");
  CHECK_THAT(error_of({"--checkpoint-storage", "both"}),
             Catch::Matchers::ContainsSubstring("shared, local"));
}

TEST_CASE("an address to listen on needs a host and a port") {
  for (const char* wrong :
       {"127.0.0.1", ":80", "host:", "host:70000", "::1:80", "[]:80", "a b:1", "host:8x"}) {
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
  CHECK(error_of({"--config", file}).starts_with(file + ":2:10: link.listen: other machines"));
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
  CHECK(slices_of(c.pipeline, engine::built_in_schedules()) == 4);
  CHECK(schedule_of(c.pipeline, engine::built_in_schedules()).given->schedule == "mine");
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
  const auto slices = [](const std::vector<std::string>& words) {
    return slices_of(config_of(words).pipeline, engine::built_in_schedules());
  };
  CHECK(slices({"--schedule", "zb-v"}) == 4);
  CHECK(slices({"--schedule", "interleaved-1f1b", "--chunks", "3", "--stages", "2"}) == 6);
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
  const std::string state = here.file("w.state.safetensors");
  std::filesystem::create_directory(state);
  for (const char* const name : {"w", "w.safetensors"})
    CHECK(error_of({"--save", here.file(name), "--save-state"}) ==
          "--save-state: " + state + " cannot be written: is a directory");
  CHECK(config_of({"--save", here.file("w")}).train.save == here.file("w"));
  const std::string file = here.write("run.toml", "[train]\nsave = \"" + root + "\"\n");
  CHECK(error_of({"--config", file}) ==
        file + ":2:8: train.save: " + root + " cannot be written: is a directory");
}

TEST_CASE("only a file can be saved to, through links too") {
  const folder here;
  const std::string link = here.file("link");
  std::filesystem::create_symlink("/dev/null", link);
  CHECK(error_of({"--save", "/dev/null"}) == "--save: /dev/null cannot be written: is a device");
  CHECK(error_of({"--save", link}) == "--save: " + link + " cannot be written: is a device");
  CHECK(error_of({"--save-profile", "/dev/null"}) ==
        "--save-profile: /dev/null cannot be written: is a device");
  const std::string fifo = here.file("fifo");
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK(error_of({"--save", fifo}) == "--save: " + fifo + " cannot be written: is a FIFO");
  CHECK(config_of({"--json", fifo}).observe.json == fifo);
  const std::string longer = here.file(std::string(256, 'n'));
  CHECK(error_of({"--save", longer}) ==
        "--save: " + longer + " cannot be written: File name too long");
  std::filesystem::create_symlink(here.file("no") + "/w", here.file("astray"));
  CHECK(error_of({"--save", here.file("astray")}) == "--save: " + here.file("astray") +
                                                         " cannot be written: the directory " +
                                                         here.file("no") + " does not exist");
}

TEST_CASE("two outputs are not one file, however it is spelled, and none is the settings'") {
  const folder here;
  const std::string one = here.file("x");
  const std::string other = here.file("./x");
  std::filesystem::create_symlink(one, here.file("link"));
  CHECK(error_of({"--save", one, "--json", other}) ==
        "--json: " + other + " is the file of --save too; each needs one of its own");
  CHECK(error_of({"--save", one, "--save-profile", here.file("link")})
            .starts_with("--save-profile: "));
  CHECK(error_of({"--json", one, "--save-profile", one}).starts_with("--save-profile: "));
  CHECK(config_of({"--save", one, "--json", here.file("y")}).train.save == one);
  const std::string file = here.write("run.toml", "[train]\nsave = \"" + one + "\"\n");
  CHECK(error_of({"--config", file, "--json", one}) ==
        "--json: " + one + " is the file of " + file +
            ":2:8: train.save too; each needs one of its own");
  CHECK(error_of({"--config", file, "--save", file}) ==
        "--save: " + file + " holds the settings of this run (--config)");
  CHECK(config_of({"--config", file}).config_files == std::vector<std::filesystem::path>{file});
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

TEST_CASE("stages compute on the CPU, by default and where the best device is asked for") {
  const auto devices_of = [](const std::vector<std::string>& flags) {
    return config_of(flags).pipeline.devices;
  };
  using list = std::vector<std::string>;
  CHECK(devices_of({}) == list{"cpu"});
  CHECK(devices_of({"--device", "cpu"}) == list{"cpu"});
  CHECK(devices_of({"--device", "auto"}) == list{"auto"});
  CHECK(error_of({"--device", "gpu"}) ==
        "--device: unknown value \"gpu\"; did you mean \"cpu\"?; allowed: cpu, auto, cuda:0, "
        "cuda:1, ..");
}

TEST_CASE("each stage may have a device of its own, in a list as long as there are stages") {
  using list = std::vector<std::string>;
  const folder here;
  const auto file =
      here.write("run.toml", "[pipeline]\nstages = 3\ndevice = [\"cpu\", \"auto\", \"cpu\"]\n");
  CHECK(config_of({"--config", file}).pipeline.devices == list{"cpu", "auto", "cpu"});
  CHECK(config_of({"--config", file, "--device", "auto"}).pipeline.devices == list{"auto"});
  CHECK(config_of({"--stages", "2", "--replicas", "2", "--device", "cpu,auto,auto,cpu"})
            .pipeline.devices.size() == 4);
  CHECK(error_of({"--config", file, "--stages", "2"}) ==
        file +
            ":3:10: pipeline.device: has 3 devices for 2 stages (--stages 2); name one for all "
            "stages, or one for each");
  CHECK(error_of({"--stages", "2", "--replicas", "3", "--device", "cpu,auto,cpu"}) ==
        "--device: has 3 devices for 2 stages (--stages 2); name one for all stages, or one for "
        "each, of one replica or of all 3");
  CHECK(error_of({"--stages", "2", "--device", "cpu,gpu"}) ==
        "--device: unknown value \"gpu\"; did you mean \"cpu\"?; allowed: cpu, auto, cuda:0, "
        "cuda:1, ..");
  CHECK(error_of({"--stages", "2", "--device", "cpu,"}) == "--device: name 2 of the list is empty");
  CHECK(
      error_of({"--tf32", "--stages", "2", "--device", "cpu,cpu"}).starts_with("--tf32: is for "));
  CHECK(config_of({"--tf32", "--stages", "2", "--device", "cpu,auto"}).model.tf32);
  CHECK(error_of(
            {"--config",
             here.write("nodes.toml",
                        "[pipeline]\ndevice = [\"cpu\", \"auto\"]\n[[node]]\nname = \"a\"\n")}) ==
        here.file("nodes.toml") +
            ":2:10: pipeline.device: a list is for stages that are on no node; name one device, "
            "and in its [[node]] table that of a node");
}

TEST_CASE("more logical replicas than samples are refused, however few micro-batches there are") {
  const std::string why =
      "8 logical replicas (--logical-replicas 8) need a sample each, but a batch "
      "has 4 (--batch-size 4); take fewer of them, or larger batches";
  for (const std::string parts : {"2", "4"})
    CHECK_THAT(error_of({"--batch-size", "4", "--micro-batches", parts, "--logical-replicas", "8"}),
               Catch::Matchers::ContainsSubstring(why));
  CHECK_THAT(error_of({"--batch-size", "4", "--replicas", "8"}),
             Catch::Matchers::ContainsSubstring(
                 "8 logical replicas (--replicas 8) need a sample each, but a batch has 4"));
  CHECK(config_of({"--batch-size", "4", "--micro-batches", "4", "--logical-replicas", "4"})
            .train.logical_replicas == 4);
}

TEST_CASE("a GPU that this machine does not have is refused in one line") {
  const auto why = error_of({"--device", "cuda:99"});
  CHECK(why.starts_with("--device: \"cuda:99\": "));
  CHECK(why.size() > 40);
  CHECK(why.find('\n') == std::string::npos);
}

TEST_CASE("batch norm is synchronized on any device, and of one logical replica there is none to") {
  CHECK(config_of({"--batch-norm", "sync"}).train.batch_norm == norm_scope::sync);
  const auto is_synced = [](const std::vector<std::string>& words) {
    const auto config = config_of(words);
    return is_norm_synced(config.pipeline, config.train);
  };
  CHECK_FALSE(is_synced({"--batch-norm", "sync"}));
  CHECK(is_synced({"--batch-norm", "sync", "--logical-replicas", "2"}));
  CHECK(is_synced({"--batch-norm", "sync", "--logical-replicas", "2", "--device", "auto"}));
  CHECK_FALSE(is_synced({"--logical-replicas", "2"}));
  CHECK_THAT(error_of({"--batch-norm", "global"}),
             Catch::Matchers::ContainsSubstring("local, sync"));
}

TEST_CASE("TF32 is for GPUs, and not to be verified to more than its own bits") {
  CHECK_FALSE(config_of({}).model.tf32);
  CHECK(error_of({"--tf32"}) ==
        "--tf32: is for GPUs, but stages compute on the CPU; leave it out, or name GPUs (--device "
        "cuda:0)");
  CHECK(config_of({"--tf32", "--device", "auto"}).model.tf32);
  const auto why = error_of({"--tf32", "--device", "auto", "--verify"});
  CHECK_THAT(why,
             Catch::Matchers::ContainsSubstring("a step cannot be verified to less than 0.001"));
  CHECK(error_of({"--tf32", "--device", "auto", "--verify", "--verify-tolerance", "0.0005"}) ==
        why);
  CHECK(config_of({"--tf32", "--device", "auto", "--verify", "--verify-tolerance", "0.001"})
            .train.verify);
}

TEST_CASE("a GPU of another host is that host's business") {
  const folder here;
  const auto file = here.write("run.toml",
                               "[cluster]\nlaunch = \"ssh\"\n"
                               "[[node]]\nname = \"a\"\nhost = \"a\"\ndevice = \"cuda:0\"\n"
                               "[[node]]\nname = \"b\"\nhost = \"b\"\ndevice = \"gpu\"\n");
  CHECK(error_of({"--config", file, "--listen", "10.0.0.1:0"}) ==
        file +
            ":10:10: node.device: unknown value \"gpu\"; did you mean \"cpu\"?; allowed: cpu, "
            "auto, cuda:0, cuda:1, ..");
}
