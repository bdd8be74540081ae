#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tests/chaos/recovery/fault.hpp"
#include "tests/chaos/recovery/scene.hpp"
#include "tests/chaos/trial.hpp"

namespace troupe::chaos {

/// A run that is disturbed, and its stage processes by their places.
struct storm_subject {
  std::string name;  ///< "three-shm"
  std::vector<std::string> stages;
  std::vector<std::string> arguments;
  std::vector<std::string> when_disturbed = {};  ///< More, for runs that something happens to.
  /// Versions outlive its trainer, from whose last steps the next one goes on.
  bool remembers = false;

  /// Its trainer is started again.
  [[nodiscard]] bool is_watched() const;
};
[[nodiscard]] const std::vector<storm_subject>& storm_subjects();
/// A run for three hosts.
[[nodiscard]] const storm_subject& host_subject();
/// The same, with checkpoints on the hosts' own disks.
[[nodiscard]] const storm_subject& local_disk_subject();
[[nodiscard]] bool is_over_hosts(const std::string& name);
/// Every row that faults of such a run can be of.
[[nodiscard]] std::vector<fault_row> fault_rows_of(const storm_subject& what);
[[nodiscard]] run_shape shape_of(const storm_subject& what);
/// Throws std::invalid_argument for a name that is none.
[[nodiscard]] const storm_subject& storm_subject_of(const std::string& name);

/// What a run is like that nothing happens to: what it tells, and what it saves, in a folder of its
/// own that goes with this object.
class calm_run {
 public:
  /// Throws where that run goes wrong.
  calm_run(const storm_subject& what, seconds bound);

  [[nodiscard]] const std::vector<told_line>& told() const { return told_; }
  [[nodiscard]] seconds usual_step() const { return usual_step_; }
  [[nodiscard]] std::filesystem::path weights() const { return folder_ / "weights"; }
  [[nodiscard]] std::filesystem::path state() const;

 private:
  tests::scratch_folder folder_;
  std::vector<told_line> told_;
  seconds usual_step_{};
};

/// Those of all subjects, each made when it is first asked for.
class calm_runs {
 public:
  explicit calm_runs(seconds bound) : bound_(bound) {}
  [[nodiscard]] const calm_run& of(const storm_subject& what);

 private:
  seconds bound_;
  std::map<std::string, std::unique_ptr<calm_run>> made_;
};

/// What became of a run after a fault.
enum class sequel : std::uint8_t {
  replayed,    ///< The lost stages alone did their last steps again.
  versions,    ///< It went on from the newest version that was kept of all stages, also with
               ///< another trainer.
  checkpoint,  ///< It went back to its last checkpoint.
  beginning,   ///< It went back to where it began.
  unnoticed,   ///< Nothing happened.
  warned,      ///< A warning, and it went on.
  refilled,    ///< Another understudy was started.
  ended,       ///< It ended as docs/failures.md says, and was started again.
};
[[nodiscard]] const char* name_of(sequel what);

struct fault_outcome {
  fault what;
  moment met = moment::step;  ///< When it really was.
  sequel after = sequel::versions;
  // Since the fault:
  seconds noticed{};                ///< To the word that something is replaced.
  seconds adopted{};                ///< Until processes that have joined have all lost places.
  seconds replayed{};               ///< To the word that the run goes on.
  seconds added{};                  ///< To the next step that had not been told, less a usual step.
  std::uint64_t actions_again = 0;  ///< Begun once more by processes that had begun them before.
  std::size_t lines = 0;            ///< That its launch had written by then.
  std::string text;                 ///< "kill -9 of stage-1.2, forward, behind step 7".
};

/// That something was done, and when.
struct strike {
  seconds at{};
  std::size_t lines = 0;   ///< That the run had written.
  std::uint64_t told = 0;  ///< Steps.
  moment met = moment::step;
  std::vector<std::string> hit;           ///< Processes that are lost by it, or may be.
  std::vector<std::string> others;        ///< That may end for it: of a trainer that is stopped.
  pid_t trainer = 0;                      ///< That is hit; 0: none is.
  bool ends_understudies = false;         ///< That wait for a trainer that is stopped.
  std::vector<std::string> understudies;  ///< That there were, where one of them is hit.
};

/// Whether a run has said, after so many lines of its log, that stages are replayed or all go on:
/// what comes then does not come during a recovery.
[[nodiscard]] bool has_recovered(const scene& run, std::size_t lines);

/// Whether a run has gone on after a fault, so far that the next may come.
[[nodiscard]] bool has_gone_on(const scene& run, const fault& what, const strike& done);

/// What became of the run, as far as it has told.
[[nodiscard]] fault_outcome outcome_of(scene& run, const fault& what, const strike& done,
                                       seconds usual_step);

/// How often a trainer of its was started again, as it has said by the last look.
[[nodiscard]] std::size_t restarts_said(const scene& run);

/// How many steps it has told, up to a fault, since it went on after the one before or was started.
[[nodiscard]] std::size_t steps_on_end(const scene& run, const strike& done);

/// Gives the faults of one launch, in their order, the actions that were computed again after each,
/// by the launch's whole log.
void count_actions_again(std::span<fault_outcome> faults, const std::vector<log_line>& log);

/// What a disturbed run, or all that it was started again as, leaves to compare.
struct storm_end {
  std::vector<std::string> told;  ///< Lines of JSON, without times.
  std::size_t launches = 1;
  std::filesystem::path weights;  ///< With the optimizer's state beside it.
  std::filesystem::path kept;     ///< Checkpoints.
};

/// In what it differs from a calm run; nothing: in no bit.
[[nodiscard]] std::vector<std::string> differences(const storm_end& end, const calm_run& calm);

/// Whether a line says that something was computed again and is not what it was.
[[nodiscard]] bool is_about_other_bits(const std::string& line);
/// Whether it says that processes which were left computed something again, though no stage went
/// back but the lost ones.
[[nodiscard]] bool is_about_survivors_work(const std::string& line);

/// The file of the optimizer's state that is saved with these weights.
[[nodiscard]] std::filesystem::path state_of(const std::filesystem::path& weights);

/// The steps of a storm's runs, and how often they write a checkpoint.
inline constexpr std::uint64_t storm_steps = 48, storm_checkpoints = 4;
/// Of a run that has any.
inline constexpr std::size_t storm_understudies = 2;

/// Whether the checkpoint that a disk takes no more may be the last one, which is compared.
[[nodiscard]] constexpr bool is_too_late_for_disks(std::uint64_t steps_told) {
  return steps_told + 2 * storm_checkpoints > storm_steps;
}

}  // namespace troupe::chaos
