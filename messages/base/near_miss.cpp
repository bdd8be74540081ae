#include "messages/base/near_miss.hpp"

#include <algorithm>
#include <cctype>
#include <cstddef>

namespace troupe {
namespace {

std::string folded(std::string_view word) {
  std::string out(word);
  for (char& c : out)
    c = c == '-' ? '_' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// Edits (insert, delete, replace, swap neighbours) that turn one word into the other.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i)
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

}  // namespace

std::optional<std::string_view> nearest(std::string_view word,
                                        const std::vector<std::string_view>& candidates) {
  constexpr std::size_t longest_word = 64;    // what a person mistypes; bounds the work
  constexpr std::size_t least_beginning = 4;  // of a word that goes on: "auto" of "automatic"
  const std::string wanted = folded(word);
  if (wanted.empty() || wanted.size() > longest_word) return std::nullopt;
  std::optional<std::string_view> best;
  std::size_t best_distance = std::max<std::size_t>(1, wanted.size() / 3) + 1;
  std::vector<std::string_view> begun;
  std::optional<std::string_view> beginning;  // the longest that the word goes on from
  std::size_t beginning_size = least_beginning - 1;
  for (const std::string_view candidate : candidates) {
    const std::string known = folded(candidate);
    if (wanted.size() >= 2 && known.starts_with(wanted)) begun.push_back(candidate);
    if (known.size() > beginning_size && wanted.starts_with(known)) {
      beginning = candidate;
      beginning_size = known.size();
    }
    const std::size_t edits = distance(wanted, known);
    if (edits < best_distance) {
      best_distance = edits;
      best = candidate;
    }
  }
  if (begun.size() == 1 && best_distance > 1) return begun.front();
  return best ? best : beginning;
}

std::string unknown_value(std::string_view value, const std::vector<std::string_view>& allowed) {
  std::string why = "unknown value \"" + std::string(value) + '"';
  if (const auto meant = nearest(value, allowed))
    why += "; did you mean \"" + std::string(*meant) + "\"?";
  return why + "; allowed: " + join(allowed);
}

std::string join(const std::vector<std::string_view>& words) {
  std::string out;
  for (const std::string_view word : words) {
    if (!out.empty()) out += ", ";
    out += word;
  }
  return out;
}

std::string joined_with_and(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 == words.size() ? " and " : ", ") + words[i];
  return text;
}

}  // namespace troupe
