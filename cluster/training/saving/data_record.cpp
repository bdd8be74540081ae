#include "cluster/training/saving/data_record.hpp"

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "messages/base/log.hpp"
#include "messages/base/near_miss.hpp"

namespace troupe::cluster {
namespace {

constexpr const char* train_name = "data.train_samples";
constexpr const char* test_name = "data.test_samples";
constexpr const char* digest_name = "data.digest";

std::string counts_in(const data_record& record) {
  return record.at(train_name) + " training and " + record.at(test_name) + " test samples";
}

/// What is another one of what both have; empty: nothing.
std::string difference(const data_record& before, const data_record& now) {
  const auto differs = [&](const char* name) {
    const auto one = before.find(name);
    const auto other = now.find(name);
    return one != before.end() && other != now.end() && one->second != other->second;
  };
  const bool are_counted = before.contains(train_name) && before.contains(test_name);
  if (are_counted && (differs(train_name) || differs(test_name)))
    return "it had " + counts_in(before) + ", and has " + counts_in(now);
  if (differs(digest_name)) return "it has as many samples, but not the same";
  return "";
}

std::vector<std::int64_t> readable_of(const std::vector<std::int64_t>& indices, engine::split part,
                                      const engine::dataset& data) {
  std::vector<std::int64_t> readable;
  for (const auto index : indices) {
    const std::array<std::int64_t, 1> one{index};
    const auto read = data.read(part, one);
    if (read && read->inputs.size(0) == 1) readable.push_back(index);
  }
  return readable;
}

}  // namespace

result<data_record> record_of(const checkpoint_config& kept, const engine::dataset& data) {
  if (kept.dir.empty() && kept.resume.empty()) return data_record();
  auto digest = data.digest();
  if (!digest) return tl::unexpected(digest.error());
  data_record made{{train_name, std::to_string(data.size(engine::split::train))},
                   {test_name, std::to_string(data.size(engine::split::test))}};
  if (!digest->empty()) made[digest_name] = std::move(*digest);
  return made;
}

std::string remedy_of_others(const std::filesystem::path& checkpoint) {
  return "begin another run from its weights (troupe checkpoint export " + checkpoint.string() +
         " FILE, then --init FILE)";
}

result<void> check_data(const whole_checkpoint& of, const setting_places& places,
                        const data_config& how, const data_record& own) {
  const auto what = difference(of.manifest.settings, own);
  if (what.empty()) return {};
  return fail(errc::bad_config, places.of("checkpoint.resume") + ": " + how.source +
                                    " has changed since " + of.folder.string() +
                                    " was written: " + what + "; give the run what it was, or " +
                                    remedy_of_others(of.folder));
}

std::string words_on_read_again(const whole_checkpoint& of, const engine::dataset& data) {
  const auto& before = of.manifest.left_out;
  const auto train = readable_of(before.train, engine::split::train, data);
  const auto test = readable_of(before.test, engine::split::test, data);
  const auto count = train.size() + test.size();
  if (count == 0) return "";
  const auto first = train.empty() ? data.name_of(engine::split::test, test.front())
                                   : data.name_of(engine::split::train, train.front());
  return counted(count, "sample") + " could not be read before " + of.folder.string() +
         " was written, and can be read now: " + (count == 1 ? "" : "the first is ") + first +
         "; the steps from here on use " + (count == 1 ? "it" : "them");
}

void warn_of_read_again(const whole_checkpoint& of, const engine::dataset& data) {
  if (const auto words = words_on_read_again(of, data); !words.empty()) log::warning(words);
}

}  // namespace troupe::cluster
