#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "engine/state/tensor_stream.hpp"
#include "messages/base/error.hpp"
#include "messages/descriptor.hpp"

namespace troupe::engine {

/// Descriptors that a process holds back, for a save that finds none left. Make it early: it takes
/// the lowest numbers that are free.
class spare_descriptors {
 public:
  spare_descriptors();
  void release() noexcept { held_.clear(); }

 private:
  std::vector<descriptor> held_;
};

/// Where tensors were saved.
struct saved_file {
  std::filesystem::path file;
  std::string refusal;  ///< Why that is not the file that was asked for; empty: it is.
};

/// Saves what a run has learned where it was told to, or else wherever it can. Used by one thread.
class anywhere_saver {
 public:
  /// What a second file is called that belongs to a first.
  using companion_name = std::function<std::filesystem::path(const std::filesystem::path& first)>;

  /// `other_folders` are tried in this order when `file` cannot be written, and then a new folder
  /// of the user's own in the system's temporary one. A name elsewhere is one whose companion's
  /// name is free as well.
  anywhere_saver(std::filesystem::path file, std::vector<std::filesystem::path> other_folders,
                 companion_name companion = {});

  /// Tries `file`, and once more with the spare descriptors given up; then the other folders, where
  /// no file is replaced: the tensors are asked for each time. Errors: io_failed, with the reason
  /// of each place; others as save_safetensors.
  [[nodiscard]] result<saved_file> save(const tensor_stream& tensors);

  /// Saves the companion of a file that `save` has written, beside it, or else elsewhere as there.
  /// Needs the name of companions. Errors: as there.
  [[nodiscard]] result<saved_file> save_companion(const std::filesystem::path& first,
                                                  const tensor_stream& tensors);

 private:
  /// What is to be written: where, and under which name where that one is too long.
  struct order {
    std::filesystem::path file;
    std::string short_name;
    const tensor_stream& tensors;
  };

  [[nodiscard]] result<saved_file> write(const order& what);
  [[nodiscard]] result<std::filesystem::path> save_in(const std::filesystem::path& folder,
                                                      const order& what) const;
  [[nodiscard]] bool is_taken(const std::filesystem::path& file) const;
  [[nodiscard]] std::filesystem::path unused_in(const std::filesystem::path& folder,
                                                const std::string& name) const;

  std::filesystem::path file_;
  std::vector<std::filesystem::path> other_folders_;
  companion_name companion_;  // may be empty
  spare_descriptors spare_;
};

}  // namespace troupe::engine
