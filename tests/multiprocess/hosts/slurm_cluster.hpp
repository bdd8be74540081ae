#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/multiprocess/hosts/test_hosts.hpp"

namespace troupe::tests {

/// A real Slurm over test hosts: slurmctld at home, a slurmd on each host, a munged on all of them,
/// with configuration and state in the hosts' folder. Ends with this object, or with the hosts.
class slurm_cluster {
 public:
  /// Returns when all hosts are idle. Each has two cores for jobs.
  explicit slurm_cluster(const test_hosts& hosts, std::size_t count = 2);

  /// Runs one of Slurm's commands at home, to its end.
  program_outcome run(const std::vector<std::string>& words,
                      const std::function<void(pid_t, std::string_view)>& on_line = {}) const;
  /// The words for it.
  [[nodiscard]] std::vector<std::string> words(const std::vector<std::string>& command) const;
  /// Hands a script to sbatch and returns the job's number.
  [[nodiscard]] std::string submit(const std::string& script, const std::string& options) const;
  /// Waits until a job has ended, for a minute at most, and returns its state ("CANCELLED").
  [[nodiscard]] std::string end_of(const std::string& job) const;
  /// What a job's script and its programs have written.
  [[nodiscard]] std::string output_of(const std::string& job) const;

 private:
  void start(const test_host& where, const std::vector<std::string>& words);

  const test_hosts& hosts_;
  std::vector<std::unique_ptr<running_program>> daemons_;
};

}  // namespace troupe::tests
