#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

namespace troupe::cluster {

/// What a run does after the loss of stages until all stages continue from one state: the newest
/// version that is kept of every stage and whose step was reported, else the newest readable
/// checkpoint of the run itself, else what the run started from (docs/recovery.md). A pure state
/// machine.
///
/// There is one effect at a time, which is answered with the event that it names. If another stage
/// is lost meanwhile, `lost` is called instead.
class return_core {
 public:
  /// The most losses in a row, without a new step between them, that do not end a run.
  static constexpr int most_in_vain = 3;

  /// Tell all stages that are left to end: `dropped`.
  struct drop_stages {
    bool operator==(const drop_stages&) const = default;
  };
  /// Ask who keeps which versions: `listed`.
  struct list_versions {
    bool operator==(const list_versions&) const = default;
  };
  /// Give these places other nodes, and all nodes without one a keeper: `replaced`.
  struct replace_lost {
    std::vector<std::size_t> places;
    bool operator==(const replace_lost&) const = default;
  };
  /// Of the run itself: `own_checkpoints`.
  struct list_checkpoints {
    bool operator==(const list_checkpoints&) const = default;
  };
  /// `was_read`.
  struct read_checkpoint {
    std::uint64_t step = 0;
    bool operator==(const read_checkpoint&) const = default;
  };
  /// What the run began from: `was_read`.
  struct read_beginning {
    bool operator==(const read_beginning&) const = default;
  };
  enum class source : std::uint8_t {
    versions,
    checkpoint,
    beginning,
    anew,  ///< The run's beginning cannot be read any more, and it may begin from nothing.
  };
  /// All stages have their state from there, and the run goes on. `step`: the last that is in it,
  /// of versions and checkpoints.
  struct go_on {
    source from = source::versions;
    std::uint64_t step = 0;
    bool operator==(const go_on&) const = default;
  };
  enum class reason : std::uint8_t {
    nobody_lost,  ///< What has failed was no loss.
    in_vain,      ///< It was lost again and again.
    no_beginning  ///< Nothing is left to go back to.
  };
  struct end_run {
    reason why = reason::nobody_lost;
    bool operator==(const end_run&) const = default;
  };
  using effect = std::variant<drop_stages, list_versions, replace_lost, list_checkpoints,
                              read_checkpoint, read_beginning, go_on, end_run>;

  /// `may_begin_anew`: where what the run began from is gone.
  explicit return_core(bool may_begin_anew) : may_begin_anew_(may_begin_anew) {}

  /// The last step that was ever done and reported. Later steps are repeated, since nobody would
  /// report them otherwise.
  void reached(std::uint64_t step);

  /// These places have no node. None: only where a replay has failed whose stage has another node.
  [[nodiscard]] effect lost(std::vector<std::size_t> places);
  [[nodiscard]] effect dropped() const { return list_versions{}; }
  /// The steps of the versions that are kept of each stage, rising.
  [[nodiscard]] effect listed(const std::vector<std::vector<std::uint64_t>>& of_stages);
  [[nodiscard]] effect replaced();
  /// Their steps, the newest first.
  [[nodiscard]] effect own_checkpoints(std::vector<std::uint64_t> steps);
  [[nodiscard]] effect was_read(bool is_well);

  /// Whether the loss of these places may be mended by a replay of their stages; it is tried then.
  /// Where another one is lost meanwhile, with all places that have no node, as for `lost`.
  [[nodiscard]] bool begin_replay(std::vector<std::size_t> places);
  /// It is known which versions are kept of the stages that are to be replayed. Returns the places
  /// that are given other nodes.
  [[nodiscard]] std::vector<std::size_t> replay_listed();
  /// They are replayed, and the others go on.
  void replayed() { is_half_mended_ = false; }

  /// Places that are still without a node, as far as they are known.
  [[nodiscard]] const std::vector<std::size_t>& without_node() const { return lost_; }
  [[nodiscard]] bool is_half_mended() const { return is_half_mended_; }
  [[nodiscard]] int in_vain() const { return in_vain_; }
  [[nodiscard]] std::uint64_t last_reached() const { return reached_; }

 private:
  [[nodiscard]] effect end_at(source from, std::uint64_t step);
  [[nodiscard]] effect read_next();

  bool may_begin_anew_;
  std::uint64_t reached_ = 0;
  int in_vain_ = 0;
  bool is_half_mended_ = false;  // a node was replaced, though not all stages are well yet
  std::vector<std::size_t> lost_;
  std::optional<std::uint64_t> version_;    // that all stages have
  std::vector<std::uint64_t> checkpoints_;  // not tried yet; the next one last
  std::optional<std::uint64_t> read_;       // that is being read; none: the beginning
};

}  // namespace troupe::cluster
