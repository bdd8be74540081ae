#include <algorithm>
#include <array>

#include "cluster/launch/agents/session_core.hpp"

namespace troupe::cluster {
namespace {

/// What a scheduler writes, what that means and what to do about it.
struct scheduler_failure {
  std::string_view carrier;
  std::string_view written;
  std::string_view meaning;
};

constexpr std::string_view no_program =
    "cannot be started there; copy it to that host, or name its path with `program` in its "
    "[[node]]";

constexpr std::array scheduler_failures = std::to_array<scheduler_failure>({
    {"srun", "execve()", no_program},
    {"srun", "Invalid job id", "the allocation has ended; ask for a new one (salloc, sbatch)"},
    {"srun", "has expired", "the allocation has ended; ask for a new one (salloc, sbatch)"},
    {"srun", "Unable to create step",
     "Slurm starts nothing there; see slurm_options and what the allocation has"},
    {"mpirun", "or execute an executable", no_program},
    {"mpirun", "attempt to run as root",
     "Open MPI refuses to run as root; run it as another user, or put \"--allow-run-as-root\" into "
     "mpi_options"},
    {"mpirun", "unable to reliably start",
     "mpirun cannot start its daemon there; see that ssh reaches the host without a question, and "
     "that Open MPI is installed there at the same path"},
    {"mpirun", "not enough slots", "mpirun has no slot there; see its host file and mpi_options"},
});

std::vector<std::string> joined(std::vector<std::string> words,
                                const std::vector<std::string>& options,
                                const std::vector<std::string>& command) {
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), command.begin(), command.end());
  return words;
}

}  // namespace

std::string explain_scheduler(const agent_place& place, const std::deque<std::string>& errors) {
  for (const auto& known : scheduler_failures) {
    if (known.carrier != place.carrier) continue;
    const auto line = std::ranges::find_if(errors, [&](const std::string& each) {
      return each.find(known.written) != std::string::npos;
    });
    if (line == errors.end()) continue;
    const std::string program = "the program " + place.program + " ";
    const auto& first = known.carrier == "mpirun" ? errors.front() : *line;
    return with_quote((known.meaning == no_program ? program : "") + std::string(known.meaning),
                      first.starts_with("---") ? *line : first);
  }
  return "";
}

// A step of its own for each host: what ends one leaves the others, and each has its own stream. It
// shares its node's cores with other steps, and its memory, and is bound to no core.
std::vector<std::string> srun_words(const std::string& host,
                                    const std::vector<std::string>& options,
                                    const std::vector<std::string>& command) {
  return joined(
      {"--nodelist=" + host, "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "--overlap",
       "--no-kill", "--kill-on-bad-exit=0", "--cpu-bind=quiet,none", "--mpi=none", "--input=all"},
      options, command);
}

// Open MPI binds a lone process to one core unless it is told not to.
std::vector<std::string> mpirun_words(const std::string& host,
                                      const std::vector<std::string>& options,
                                      const std::vector<std::string>& command) {
  return joined({"--host", host, "-n", "1", "--bind-to", "none"}, options, command);
}

}  // namespace troupe::cluster
