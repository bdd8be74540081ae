#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "messages/link/frames/outbox.hpp"
#include "messages/link/seal/format.hpp"

namespace troupe::messages {

/// Gathers small whole frames of one lane that are ready at the same time, so that they share the
/// cost of one message: on the wire, for its seal and for wake-ups. Pure logic; one thread.
class bundle {
 public:
  /// A larger frame is sent by itself, which costs no more.
  static constexpr std::size_t most_of_frame = 1024;

  /// Whether the next piece of the outbox fits in after those that are here.
  [[nodiscard]] bool takes(const outbox::piece& next) const;
  void add(outbox::piece next);

  [[nodiscard]] std::size_t size() const { return pieces_.size(); }
  /// The prefix, not sealed, of these frames as one message, and its data, which takes the place of
  /// what is in `room`.
  [[nodiscard]] wire::bundle_prefix prefix() const;
  [[nodiscard]] std::vector<std::byte> data(std::vector<std::byte> room = {}) const;
  /// The pieces; the bundle is empty afterwards and gathers the next ones in `room`, an empty list.
  [[nodiscard]] std::vector<outbox::piece> take(std::vector<outbox::piece> room = {});

 private:
  std::vector<outbox::piece> pieces_;
  std::size_t bytes_ = 0;  // of `data`
};

/// A frame of a bundle, as if it had arrived alone.
struct bundled_frame {
  wire::frame_prefix prefix;
  std::span<const std::byte> data;  ///< Of the bundle's.
};

/// The frames of a bundle, in order. Errors: bad_frame when they do not add up to the whole.
[[nodiscard]] result<std::vector<bundled_frame>> unbundle(const wire::bundle_prefix& prefix,
                                                          std::span<const std::byte> data);

}  // namespace troupe::messages
