#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "messages/base/error.hpp"

namespace troupe::cluster {

/// How one end of a stream shows whose it is. Without functions it shows nothing.
struct stream_witness {
  /// Turns a statement into a credential of this user's: one word.
  std::function<result<std::string>(const std::string& statement)> vouch;
  /// The statement of a credential, of this very user's.
  std::function<result<std::string>(const std::string& credential)> check;
};

/// What makes the lines that a launcher and its agent say to each other secret and unchangeable
/// where others carry them (srun, mpirun). After the agent's first line in the clear (agent_magic)
/// each end says one ephemeral X25519 key and, with a witness, a credential for it; all that
/// follows is ChaCha20-Poly1305 in base64, a key for each direction, numbered. Who records the
/// stream reads nothing. Who changes it is noticed, and who poses as an end is refused by its
/// witness; without one, whoever is in the middle from the first line on can pose as both. One
/// thread at a time.
class stream_seal {
 public:
  enum class end : std::uint8_t { launcher, agent };

  /// What came in one line.
  struct taken {
    std::optional<std::string> clear;  ///< A line for us, which may hold a secret.
    std::string answer;                ///< Lines to be sent at once.
  };

  stream_seal(end which, stream_witness witness);
  stream_seal(const stream_seal&) = delete;
  stream_seal& operator=(const stream_seal&) = delete;
  ~stream_seal();

  /// What an agent says behind its first line; with its newline. Errors: the witness's.
  [[nodiscard]] result<std::string> opening();
  /// A line of the other end's. A launcher's is in the clear until it is the agent's first one.
  /// Errors: bad_frame where it was changed or is no key, and the witness's.
  [[nodiscard]] result<taken> take(std::string_view line);
  /// The line that says `clear`; with its newline. Empty while no keys are agreed: the line
  /// is kept until then, and is part of an answer.
  [[nodiscard]] std::string seal(std::string clear);

 private:
  struct keys;

  [[nodiscard]] result<taken> agree(std::string_view line);
  [[nodiscard]] result<std::string> open(std::string_view line);
  [[nodiscard]] result<std::string> key_line(const std::string& agent_key);
  [[nodiscard]] std::string statement_of(end who, const std::string& agent_key,
                                         const std::string& launcher_key) const;

  const end which_;
  const stream_witness witness_;
  const std::unique_ptr<keys> keys_;
  std::vector<std::string> waiting_;
  bool begun_ = false;  // the agent's first line is known
  bool agreed_ = false;
};

}  // namespace troupe::cluster
