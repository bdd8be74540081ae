#pragma once

#include <cstdint>

namespace troupe::cluster {

/// The order in which a checkpoint is written to disks and old ones are removed: a pure state
/// machine. After a loss of power, in which everything that was not synced may be lost, every
/// visible checkpoint is whole, and there is one once the first was complete. If hosts keep the
/// files on their own disks, the same holds after the loss of any one disk.
///
/// There is one effect at a time, which is answered with `did`.
class checkpoint_write_core {
 public:
  enum class effect : std::uint8_t {
    collect,          ///< Have all files written and synced, and the step reported.
    copy,             ///< Have each host copy another one's files, as far as that can be done.
    write_manifest,   ///< In a folder of a name that no checkpoint has, and sync that with it.
    take_name,        ///< The folder gets the checkpoint's name; what has it gets that folder's.
    sync_names,       ///< Of all checkpoints.
    remove_replaced,  ///< What had the name.
    keep_manifest,    ///< On the hosts.
    unlist_old,       ///< Remove the manifests of all but the newest: they are no checkpoints then.
    sync_old,         ///< So that they stay removed.
    remove_old,       ///< The rest of those.
    remove_slices,    ///< On the hosts, of no checkpoint that is left.
    drop,             ///< Remove the folder: it becomes no checkpoint.
    end,              ///< See `is_whole`.
  };

  /// `on_hosts`: who keep the files.
  explicit checkpoint_write_core(bool on_hosts) : on_hosts_(on_hosts) {}

  [[nodiscard]] effect next() const { return next_; }

  /// Whether the last effect succeeded.
  void did(bool is_well) {
    is_whole_ = is_whole_ || (is_well && next_ == effect::sync_names);
    next_ = is_well ? behind(next_) : instead_of(next_);
  }

  /// It is there, and stays.
  [[nodiscard]] bool is_whole() const { return is_whole_; }

 private:
  [[nodiscard]] effect behind(effect which) const {
    switch (which) {
      case effect::collect:
        return on_hosts_ ? effect::copy : effect::write_manifest;
      case effect::copy:
        return effect::write_manifest;
      case effect::write_manifest:
        return effect::take_name;
      case effect::take_name:
        return effect::sync_names;
      case effect::sync_names:
        return effect::remove_replaced;
      case effect::remove_replaced:
        return on_hosts_ ? effect::keep_manifest : effect::unlist_old;
      case effect::keep_manifest:
        return effect::unlist_old;
      case effect::unlist_old:
        return effect::sync_old;
      case effect::sync_old:
        return effect::remove_old;
      case effect::remove_old:
      case effect::drop:
        return on_hosts_ ? effect::remove_slices : effect::end;
      case effect::remove_slices:
      case effect::end:
        return effect::end;
    }
    return effect::end;
  }

  /// Nothing is removed unless it is certain that this checkpoint stays and that no old one is seen
  /// in part; what is not removed now is removed with the next checkpoint.
  [[nodiscard]] effect instead_of(effect which) const {
    switch (which) {
      case effect::collect:
      case effect::copy:
      case effect::write_manifest:
      case effect::take_name:
        return effect::drop;
      case effect::remove_replaced:
      case effect::keep_manifest:  // the trainer has it
        return behind(which);
      default:
        return effect::end;
    }
  }

  bool on_hosts_;
  effect next_ = effect::collect;
  bool is_whole_ = false;
};

}  // namespace troupe::cluster
