#include "cluster/training/program.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <span>
#include <string_view>
#include <variant>

#include "cluster/doctor/examiner.hpp"
#include "cluster/doctor/facts/facts_text.hpp"
#include "cluster/doctor/report.hpp"
#include "cluster/launch/agents/agent.hpp"
#include "cluster/launch/last_word.hpp"
#include "cluster/launch/open_files.hpp"
#include "cluster/launch/program_identity.hpp"
#include "cluster/launch/start/process_start.hpp"
#include "cluster/launch/start/zygote.hpp"
#include "cluster/observe/json_lines.hpp"
#include "cluster/training/doctor_command.hpp"
#include "cluster/training/measuring_process.hpp"
#include "cluster/training/restarts/restarts.hpp"
#include "engine/base/torch_error.hpp"
#include "messages/base/answer.hpp"
#include "messages/base/exit_code.hpp"
#include "messages/base/log.hpp"
#include "messages/base/printable.hpp"

namespace troupe::cluster {

/// The program's own `main`, whose words may have decided what it gave to `run_program`.
int main_of_program(int argc, char** argv, char** environment) __asm__("main");

namespace {

/// Each copy runs the program from its `main` on.
void keep_zygote_of_program() noexcept {
  if (const auto copy = keep_zygote())
    std::exit(main_of_program(copy->count, const_cast<char**>(copy->words), environ));
}

/// As report does, for who has started this process and says it.
int leave_word(const error& why) {
  std::fprintf(stderr, "%s%s\n", last_word_mark.data(), printable(why.text).c_str());
  return exit_code(why.code);
}

/// For the process that outlives trainers, which is connected with all others of the run, and may
/// have memory of as many that were lost. A trainer raises its own limit when it starts them.
void allow_files_of_keeper(const placement_tables& config) {
  const auto others = 1 + stage_names_of(config.pipeline).size() + config.cluster.understudies;
  if (auto room = allow_open_files(own_files + (files_a_process + 1) * others); !room)
    log::warning("the keeper of versions: " + room.error().text);
}

/// Acts as a command says; one overload each.
struct performer {
  const char* name;
  const program_actions& actions;

  int operator()(const trainer_config& config) const {
    log::set_verbose(config.observe.verbose);
    if (config.train.max_restarts > 0) {
      end_zygote();  // each trainer keeps its own
      const auto of_another_run = file_with_lines::at(config.observe.json);
      const auto watched = train_with_restarts(
          {.program = name,
           .most = config.train.max_restarts,
           .checkpoint_signal = signal_of(config.checkpoint).value_or(0),
           .has_keeper = actions.keep && outlives_trainer(config.train, config.pipeline)});
      if (!watched) return report(name, watched.error());
      if (watched->is == watched_process::role::watcher) return watched->exit_code;
      if (watched->is == watched_process::role::keeper) {
        allow_files_of_keeper(config);
        return keep_versions(actions.keep, watched->socket.get(), config.cluster.network);
      }
      accept_open_files();  // or there would be no zygote
      keep_zygote_of_program();
      auto own = config;
      own.keeper_socket = watched->socket.get();
      own.restart = watched->restart;
      // A trainer that was lost before it had a step to report may have left another run's lines.
      own.json_is_begun =
          own.restart > 0 && file_with_lines::at(own.observe.json) != of_another_run;
      return train(own);
    }
    return train(config);
  }

  [[nodiscard]] int train(const trainer_config& config) const {
    const auto ended = actions.train(config);
    return ended ? report(name, *ended) : report(name, ended.error());
  }

  int operator()(const node_options& options) const {
    log::set_verbose(options.verbose);
    if (options.secret_descriptor >= 0) leave_signals_to_parent();
    const auto ended = actions.serve(options);
    // Why the run has failed is said by who has started this process, if that is the run.
    const bool is_said = options.secret_descriptor >= 0;
    if (ended || (is_said && ended.error().code == errc::cancelled)) return 0;
    return is_said ? leave_word(ended.error()) : report(name, ended.error());
  }

  int operator()(const message_text& message) const {
    const auto written = write_answer(message.text);
    return written ? 0 : report(name, written.error());
  }
};

/// Of a command line that a program cannot check; nothing is run.
error no_check(const program_info& info, const command& asked) {
  if (std::holds_alternative<node_options>(asked))
    return {errc::bad_config,
            "--check: shows a run, and --join serves in one that there is; leave one of them out"};
  return {errc::bad_config,
          "--check: " + info.name + " has no table of a run to show; its settings have no error"};
}

// `PROGRAM --check FLAGS`: every error of the settings, or what they would have run where. Trains
// nothing, whatever the program can do.
int run_check(const program_info& info, const program_actions& actions,
              std::span<const char* const> arguments) {
  const char* const name = info.name.c_str();
  const auto errors = every_error(info, arguments);
  for (const auto& each : errors) report(name, {errc::bad_config, each});
  if (!errors.empty()) return exit_refused;
  const auto asked = read_command_line(info, arguments);
  if (!asked) return report(name, asked.error());
  if (const auto* const text = std::get_if<message_text>(&*asked))
    return performer{name, actions}(*text);
  const auto* const config = std::get_if<trainer_config>(&*asked);
  if (config == nullptr || !actions.check) return report(name, no_check(info, *asked));
  const auto checked = actions.check(*config);
  if (!checked) return report(name, checked.error());
  const auto written = write_answer(checked->table);
  if (checked->refused) return report(name, *checked->refused);
  return written ? 0 : report(name, written.error());
}

// `PROGRAM --measure-layers SAMPLES FLAGS`: for a process that was started with these flags.
int run_measuring(const program_info& info, const program_actions& actions,
                  std::span<const char* const> arguments) {
  return answer_measuring(arguments.size() > 2 ? arguments[2] : "",
                          [&](std::int64_t samples) -> result<engine::model_profile> {
                            const auto asked = read_command_line(info, arguments.subspan(3));
                            if (!asked) return tl::unexpected(asked.error());
                            const auto* const config = std::get_if<trainer_config>(&*asked);
                            if (config == nullptr || !actions.measure)
                              return fail(errc::bad_config, "there are no layers to measure");
                            return actions.measure(*config, samples);
                          });
}

/// Whether a program with these words may start other processes that are the program itself.
bool starts_processes(std::span<const char* const> arguments) {
  constexpr std::array<std::string_view, 5> alone{"--join", doctor::examine_word, measure_word,
                                                  "--check", "--help"};
  return std::ranges::none_of(arguments, [&](std::string_view word) {
    return std::ranges::find(alone, word) != alone.end();
  });
}

struct zygote_guard {
  zygote_guard() = default;
  zygote_guard(const zygote_guard&) = delete;
  zygote_guard& operator=(const zygote_guard&) = delete;
  ~zygote_guard() { end_zygote(); }
};

}  // namespace

int run_program(const program_info& info, const program_actions& actions, int argc,
                const char* const* argv) try {
  const auto arguments = std::span<const char* const>(argv, static_cast<std::size_t>(argc));
  const std::string_view first = arguments.size() > 1 ? arguments[1] : "";
  if (first == identity_word) return write_answer(std::string(identity) + "\n") ? 0 : exit_refused;
  if (starts_processes(arguments)) keep_zygote_of_program();
  const zygote_guard ends_with_us;
  prepare_process();
  if (first == agent_word) return run_agent(arguments.size() > 2 ? arguments[2] : "");
  if (first == doctor::examine_word && arguments.size() == 3)
    return doctor::run_examiner(arguments[2], info.known.data);
  if (first == doctor::doctor_word)
    return run_doctor_command(info, {actions.needs, actions.data, actions.has_stages},
                              arguments.subspan(2));
  if (first == "--check") return run_check(info, actions, arguments.subspan(2));
  if (first == measure_word) return run_measuring(info, actions, arguments);
  auto asked = read_command_line(info, arguments.subspan(1));
  if (!asked) return report(info.name.c_str(), asked.error());
  if (auto* const config = std::get_if<trainer_config>(&*asked))
    config->command.assign(arguments.begin(), arguments.end());
  return std::visit(performer{info.name.c_str(), actions}, *asked);
} catch (const std::exception& problem) {
  return report(info.name.c_str(), {engine::code_of(problem), engine::reason_of(problem)});
}

}  // namespace troupe::cluster
