#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "cluster/checkpoints/checkpoint_folder.hpp"
#include "cluster/config/config_tables.hpp"
#include "cluster/config/setting_places.hpp"
#include "engine/data/dataset.hpp"
#include "messages/base/error.hpp"

namespace troupe::cluster {

/// A description of a run's data, which its checkpoints record among their settings: the number of
/// samples of each split and the data's own digest, by name and value. Empty: nothing is known.
using data_record = std::map<std::string, std::string>;

/// Empty for a run that neither writes checkpoints nor resumes from one. Errors: those of
/// engine::dataset::digest.
[[nodiscard]] result<data_record> record_of(const checkpoint_config& kept,
                                            const engine::dataset& data);

/// What a user can do whose run differs from the checkpoint's, as the end of a sentence.
[[nodiscard]] std::string remedy_of_others(const std::filesystem::path& checkpoint);

/// Whether the data are those of the checkpoint's run, as far as both are known. Errors: bad_config
/// with what they were.
[[nodiscard]] result<void> check_data(const whole_checkpoint& of, const setting_places& places,
                                      const data_config& how, const data_record& own);

/// A warning if samples can be read that the checkpoint's run had left out as unreadable; empty:
/// there are none. This is no reason to refuse the checkpoint: a run that had not ended would read
/// them from here on too.
[[nodiscard]] std::string words_on_read_again(const whole_checkpoint& of,
                                              const engine::dataset& data);

/// The same as a warning.
void warn_of_read_again(const whole_checkpoint& of, const engine::dataset& data);

}  // namespace troupe::cluster
