// The command line of the project: launches and checks runs, plans them, and looks at checkpoints.

#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "apps/troupe/checkpoint_command.hpp"
#include "apps/troupe/devices_command.hpp"
#include "apps/troupe/launch_command.hpp"
#include "apps/troupe/plan_command.hpp"
#include "cluster/config/sources/set_flag.hpp"
#include "cluster/doctor/report.hpp"
#include "cluster/launch/start/process_start.hpp"
#include "messages/base/answer.hpp"
#include "messages/base/exit_code.hpp"
#include "messages/base/printable.hpp"

namespace {

using namespace troupe;

/// Says on standard error, in one line, why a command cannot be obeyed. `verb`: empty where none is
/// known.
int refuse(const std::string& verb, const error& why) {
  std::fprintf(stderr, "troupe%s: %s\n", (verb.empty() ? verb : " " + verb).c_str(),
               printable(why.text).c_str());
  return exit_refused;
}

/// Writes what a command found to standard output. Returns the exit code.
int answer(const std::string& verb, std::string_view text) {
  const auto written = write_answer(text);
  return written ? 0 : refuse(verb, written.error());
}

std::size_t terminal_columns(std::size_t otherwise) {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20
             ? static_cast<std::size_t>(size.ws_col) - 8
             : otherwise;
}

std::string number_or_auto(const std::string& word) {
  if (word == "0") throw CLI::ValidationError("0 is neither a number from 1 nor auto");
  return word == "auto" ? "0" : word;
}

/// Returns --profile, which the others need.
CLI::Option* add_measured_options(CLI::App& command, apps::measured_model& measured) {
  auto* const profile = command.add_option(
      "--profile", measured.file, "Profile of the model to plan for, as --save-profile writes it");
  const auto add = [&](const char* flag, auto& to, const char* help) {
    return command.add_option(flag, to, help)->needs(profile);
  };
  add("--partition", measured.partition,
      "How the model is cut; auto: for the fastest step; even: by multiply-accumulates; or the "
      "first layer of each slice except the first")
      ->delimiter(',')
      ->capture_default_str();
  add("--recompute", measured.recompute, "Layers (or groups) whose activations are recomputed")
      ->delimiter(',');
  auto* const memory = add("--memory-mib", measured.memory_mib,
                           "Memory limit of a stage for --partition auto; 0: none")
                           ->capture_default_str();
  add("--device-memory-mib", measured.device_memory_mib,
      "Memory limit of a stage on a GPU for --partition auto; 0: none")
      ->capture_default_str()
      ->excludes(memory);
  add("--batch-size", measured.batch_size, "Samples per step")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  add("--cores", measured.cores, "Cores that all stages share")->check(CLI::Range(1, 1 << 20));
  add("--link-gbytes", measured.link_gbytes,
      "Rate at which a stage sends, in 1e9 bytes a second; 0: by reference, at no cost")
      ->check(CLI::Range(0.0, 1e6));
  add("--network-gbits", measured.network_gbits,
      "Rate of a network between the stages, in 1e9 bits a second each way; 0: no bound")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  add("--network-ms", measured.network_ms, "One-way latency of that network in milliseconds")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command
      .add_flag("--layers", measured.layers,
                "Show the time that a step spends in each layer, and the rates that it reaches "
                "there")
      ->needs(profile);
  return profile;
}

void add_plan_options(CLI::App& command, apps::plan_request& request, std::vector<double>& costs) {
  std::vector<std::string> names;
  for (const auto name : engine::built_in_schedules().names()) names.emplace_back(name);
  auto* const schedule =
      command.add_option("--schedule", request.schedule.name, "Schedule that generates the plan")
          ->check(CLI::IsMember(names))
          ->capture_default_str();
  auto* const stages = command.add_option("--stages", request.stages, "Stages of the pipeline")
                           ->capture_default_str();
  auto* const parts = command
                          .add_option("--micro-batches", request.micro_batches,
                                      "Micro-batches per step; auto: the number with the fastest "
                                      "predicted step, for a profiled model")
                          ->transform(number_or_auto)
                          ->capture_default_str();
  auto* const chunks =
      command.add_option("--chunks", request.schedule.chunks,
                         "Slices of the model per stage; 0: as few as the schedule allows");
  auto* const unit =
      command.add_option("--costs", costs, "Costs of F, I and W for one micro-batch on one stage")
          ->delimiter(',')
          ->expected(3)
          ->capture_default_str();
  auto* const latency =
      command.add_option("--latency", request.latency, "Latency of a message, in the same unit")
          ->capture_default_str();
  command.add_option("--svg", request.svg, "File for a chart (SVG)");
  command.add_option("--text", request.text, "File for the plan");
  auto* const profile =
      add_measured_options(command, request.measured)->excludes(unit)->excludes(latency);
  command.add_option("--check", request.check, "Check and show the plan of this file")
      ->excludes(profile)
      ->excludes(schedule)
      ->excludes(stages)
      ->excludes(parts)
      ->excludes(chunks);
}

int run_plan(apps::plan_request request, const std::vector<double>& costs) {
  request.costs = {costs[0], costs[1], costs[2]};
  request.colour = isatty(STDOUT_FILENO) == 1;
  request.columns = terminal_columns(request.columns);
  const auto text = apps::run_plan_command(request);
  return text ? answer("plan", *text) : refuse("plan", text.error());
}

CLI::App* add_devices(CLI::App& app, apps::devices_request& request) {
  auto* const command = app.add_subcommand(
      "devices", "Lists the devices to compute on, and the reasons why some cannot be used");
  command->add_flag("--json", request.as_json, "Print one JSON object");
  command->add_option("--nccl", request.nccl, "NCCL library, or the folder that contains it");
  command->add_option("--torch-cuda", request.torch_cuda,
                      "libtorch_cuda.so; left out: the one beside LibTorch's CPU library");
  return command;
}

/// The verbs of `troupe checkpoint`; the request says which one was given.
CLI::App* add_checkpoint(CLI::App& app, apps::checkpoint_request& request) {
  using apps::checkpoint_verb;
  auto* const command =
      app.add_subcommand("checkpoint", "Lists, shows, checks and exports checkpoints of a run");
  command->require_subcommand(1);
  const auto add = [&](const char* name, checkpoint_verb verb, const char* help,
                       const char* where) {
    auto* const one = command->add_subcommand(name, help);
    one->add_option("FOLDER", request.where, where)->required();
    one->callback([&request, verb] { request.verb = verb; });
    if (verb != checkpoint_verb::export_weights)
      one->add_flag("--json", request.as_json, "Print one JSON object");
    return one;
  };
  const char* const newest = "A checkpoint, or the folder of --checkpoint-dir for its newest one";
  add("list", checkpoint_verb::list,
      "Shows the checkpoints in a folder: step, age, size, and whether each file has the length "
      "that it should have",
      "The folder of --checkpoint-dir");
  add("inspect", checkpoint_verb::inspect,
      "Shows a checkpoint's step, settings and files, and each tensor's type, shape and size",
      newest);
  add("verify", checkpoint_verb::verify,
      "Reads every byte and checks the checksums of files and tensors, and that values are finite; "
      "exit code 2 if something is wrong",
      "A checkpoint, or the folder of --checkpoint-dir for all of them");
  add("export", checkpoint_verb::export_weights,
      "Writes parameters and buffers as one safetensors file, as --save does", newest)
      ->add_option("FILE", request.file, "File to write; an existing file is replaced")
      ->required();
  return command;
}

int run_checkpoint(const apps::checkpoint_request& request) {
  const auto found = apps::run_checkpoint_command(request, std::time(nullptr));
  if (!found) return refuse("checkpoint", found.error());
  const int written = answer("checkpoint", found->text);
  if (found->complaint.empty()) return written;
  return refuse("checkpoint", {errc::bad_data, found->complaint});
}

/// What `troupe join` is told.
struct join_request {
  std::string address;
  std::string name;
  std::string secret_file;
  std::string network = "sealed";
  std::string listen;
};

CLI::Option* add_sets(CLI::App& command, apps::launch_request& request) {
  return command
      .add_option("--set", request.sets,
                  "Set a key, TABLE.KEY=VALUE, such as optimizer.lr=0.1; wins over the files")
      ->allow_extra_args(false);
}

CLI::App* add_file_command(CLI::App& app, const char* name, const char* help,
                           apps::launch_request& request) {
  auto* const command = app.add_subcommand(name, help);
  command->add_option("FILE", request.files, "The run's TOML files; a later one wins, key by key")
      ->required();
  add_sets(*command, request);
  command->footer(
      "Arguments after -- go to the program. Its flags win over --set, which wins over the files.");
  return command;
}

CLI::App* add_join(CLI::App& app, join_request& join, apps::launch_request& request) {
  auto* const command =
      app.add_subcommand("join",
                         "Serves as a stage of a run whose config says launch = \"none\", "
                         "or lets the run's troupe doctor examine this machine");
  command->add_option("ADDRESS", join.address, "Address at which the trainer listens, HOST:PORT")
      ->required();
  command->add_option("--name", join.name, "Stage to serve as: stage-0, ..")->required();
  command->add_option("--secret-file", join.secret_file, "File with the cluster's secret")
      ->required();
  command->add_option("--network", join.network, "The run's [link] network: sealed or trusted")
      ->capture_default_str();
  command->add_option("--listen", join.listen,
                      "Where to listen for other stages: HOST, HOST:PORT or a network such as "
                      "10.0.0.0/8; left out: the address from which it reaches the trainer, or, "
                      "once all have joined, the network that their hosts share");
  auto* const program = command->add_option("--program", request.program, "The run's program");
  auto* const files =
      command
          ->add_option("--config", request.files,
                       "The run's TOML file, whose [cluster] names the program; may be given "
                       "several times, and a later one wins, key by key")
          ->allow_extra_args(false)
          ->excludes(program);
  add_sets(*command, request)->needs(files);
  command->footer("Of the files and of --set only the program counts here.");
  return command;
}

using words = std::vector<std::string>;

/// What `troupe launch` copies to hosts first.
struct push_flags {
  bool some = false;
  bool all = false;
};

void add_push(CLI::App& launch, push_flags& push) {
  launch.add_flag("--push", push.some,
                  "Copy the program and the libraries beside it to hosts that lack them, by ssh");
  launch.add_flag(
      "--push-all", push.all,
      "Like --push, and also copy LibTorch and every other library of no system package");
}

words words_of(const push_flags& push) {
  if (push.all) return {"--push", "all"};
  return push.some ? words{"--push", "program"} : words();
}

/// Becomes the program of the files, or says why it cannot. `first`: what it is to do with them.
error become_program_of_files(words first, apps::launch_request request) {
  request.before = std::move(first);
  for (const auto& file : request.files)
    request.before.insert(request.before.end(), {"--config", file.string()});
  for (const auto& text : request.sets)
    request.before.insert(request.before.end(), {"--set", text});
  return apps::become_program(request);
}

/// Where no program is known to say what is wrong, it is said here in the same form.
int run_doctor(bool as_json, apps::launch_request request) {
  using namespace cluster;
  if (!as_json)
    return refuse("doctor", become_program_of_files({doctor::doctor_word}, std::move(request)));
  const auto why =
      become_program_of_files({doctor::doctor_word, doctor::json_word}, std::move(request));
  const auto wrong = doctor::of_settings({why.text});
  const int written = answer("doctor", doctor::report_json(wrong));
  return written == 0 ? doctor::exit_code(wrong) : written;
}

int run_join(const join_request& join, apps::launch_request request) {
  if (request.program.empty() && request.files.empty())
    return refuse("join", {errc::bad_config,
                           "name the run's program with --program, or its files with --config"});
  for (const auto& text : request.sets)
    if (!cluster::split_set(text))
      return refuse("join", {errc::bad_config, "--set " + text + ": is not TABLE.KEY=VALUE"});
  request.before = {"--join", join.address, "--node-name", join.name,       "--link",
                    "tcp",    "--network",  join.network,  "--secret-file", join.secret_file};
  if (!join.listen.empty())
    request.before.insert(request.before.end(), {"--node-listen", join.listen});
  return refuse("join", apps::become_program(request));
}

}  // namespace

int main(int argc, char** argv) {
  cluster::leave_libraries_at_exit();
  CLI::App app("Launches and plans Troupe runs, and inspects their checkpoints.", "troupe");
  app.require_subcommand(1);
  // What stands behind -- is the program's.
  char** const split = std::find(argv, argv + argc, std::string("--"));
  apps::launch_request launched;
  if (split != argv + argc) launched.flags.assign(split + 1, argv + argc);
  auto* const launch = add_file_command(
      app, "launch", "Runs the program of a config file on the nodes that it names", launched);
  auto* const check = add_file_command(
      app, "check", "Reports the errors in a config file, and which stage would run where",
      launched);
  push_flags push;
  add_push(*launch, push);
  bool as_json = false;
  auto* const doctor = add_file_command(
      app, "doctor", "Examines every node and edge of a run before it starts", launched);
  doctor->add_flag("--json", as_json,
                   "Print one JSON object with the findings and all that was measured");
  join_request joined;
  auto* const join = add_join(app, joined, launched);
  apps::checkpoint_request kept;
  auto* const checkpoint = add_checkpoint(app, kept);
  apps::devices_request looked;
  auto* const devices = add_devices(app, looked);
  apps::plan_request request;
  std::vector<double> costs{1, 1, 1};
  auto* const plan = app.add_subcommand(
      "plan", "Makes or checks a plan, and shows its chart, time, bubble and memory");
  add_plan_options(*plan, request, costs);
  try {
    app.parse(static_cast<int>(split - argv), argv);
  } catch (const CLI::ParseError& wrong) {
    if (wrong.get_exit_code() != 0) return refuse("", {errc::bad_config, wrong.what()});
    std::ostringstream help;
    app.exit(wrong, help, help);
    return answer("", help.str());
  }
  if (checkpoint->parsed()) return run_checkpoint(kept);
  if (plan->parsed()) return run_plan(std::move(request), costs);
  if (devices->parsed()) return answer("devices", apps::run_devices_command(looked));
  if (join->parsed()) return run_join(joined, std::move(launched));
  if (check->parsed())
    return refuse("check", become_program_of_files({"--check"}, std::move(launched)));
  if (launch->parsed())
    return refuse("launch", become_program_of_files(words_of(push), std::move(launched)));
  return run_doctor(as_json, std::move(launched));
}
