#include "tests/unit/engine/data/image_writer.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

// After <cstdio>: jpeglib.h needs its FILE.
#include <jpeglib.h>
#include <png.h>

namespace troupe::testing {
namespace {

// The inks of a colour; black takes what the three have in common.
std::array<int, 4> inks(colour fill) {
  const int brightest = std::max({fill[0], fill[1], fill[2], std::uint8_t{1}});
  std::array<int, 4> ink{};
  for (std::size_t i = 0; i < 3; ++i) ink[i] = 255 - fill[i] * 255 / brightest;
  ink[3] = 255 - brightest;
  return ink;
}

std::vector<std::uint8_t> jpeg_row(colour fill, const jpeg_kind& kind) {
  std::vector<std::uint8_t> row;
  for (int x = 0; x < kind.width; ++x) {
    if (kind.colours == jpeg_kind::grey) {
      row.push_back(fill[0]);
    } else if (kind.colours == jpeg_kind::rgb) {
      row.insert(row.end(), fill.begin(), fill.end());
    } else {
      const bool inverted = kind.colours != jpeg_kind::cmyk;  // with Adobe's marker
      for (const int ink : inks(fill))
        row.push_back(static_cast<std::uint8_t>(inverted ? 255 - ink : ink));
    }
  }
  return row;
}

void choose_colours(jpeg_compress_struct& info, const jpeg_kind& kind) {
  const bool three = kind.colours == jpeg_kind::rgb;
  const bool one = kind.colours == jpeg_kind::grey;
  info.input_components = one ? 1 : three ? 3 : 4;
  info.in_color_space = one ? JCS_GRAYSCALE : three ? JCS_RGB : JCS_CMYK;
  jpeg_set_defaults(&info);
  if (kind.colours == jpeg_kind::ycck) jpeg_set_colorspace(&info, JCS_YCCK);
  if (kind.colours == jpeg_kind::cmyk) info.write_Adobe_marker = FALSE;
  jpeg_set_quality(&info, 95, TRUE);
  if (kind.progressive) jpeg_simple_progression(&info);
}

void append(png_structp png, png_bytep bytes, std::size_t count) {
  static_cast<std::string*>(png_get_io_ptr(png))->append(reinterpret_cast<char*>(bytes), count);
}

std::vector<std::uint8_t> png_row(colour fill, const png_kind& kind) {
  std::vector<std::uint8_t> row;
  const auto push = [&row, &kind](std::uint8_t value) {
    row.push_back(value);
    if (kind.bits == 16) row.push_back(value);  // value * 257: the same brightness
  };
  if (kind.colours == png_kind::palette || kind.bits < 8)  // all bits of a grey pixel, or entry 1
    return {static_cast<std::size_t>(kind.width),
            static_cast<std::uint8_t>(kind.colours == png_kind::palette ? 0x01 : 0xff),
            std::allocator<std::uint8_t>()};
  for (int x = 0; x < kind.width; ++x) {
    if (kind.colours == png_kind::grey) {
      push(fill[0]);
      continue;
    }
    for (const auto value : fill) push(value);
    if (kind.colours == png_kind::rgba) push(static_cast<std::uint8_t>(x));
  }
  return row;
}

void write_png_head(png_structp png, png_infop info, colour fill, const png_kind& kind) {
  const int type = kind.colours == png_kind::grey   ? PNG_COLOR_TYPE_GRAY
                   : kind.colours == png_kind::rgb  ? PNG_COLOR_TYPE_RGB
                   : kind.colours == png_kind::rgba ? PNG_COLOR_TYPE_RGB_ALPHA
                                                    : PNG_COLOR_TYPE_PALETTE;
  png_set_IHDR(png, info, static_cast<png_uint_32>(kind.width),
               static_cast<png_uint_32>(kind.height), kind.bits, type,
               kind.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  const std::array<png_color, 2> palette{png_color{1, 2, 3}, png_color{fill[0], fill[1], fill[2]}};
  const std::array<png_byte, 2> opacity{0, 128};
  if (kind.colours == png_kind::palette) {
    png_set_PLTE(png, info, palette.data(), 2);
    png_set_tRNS(png, info, opacity.data(), 2, nullptr);
  }
  png_write_info(png, info);
}

}  // namespace

std::string jpeg_bytes(colour fill, const jpeg_kind& kind) {
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long count = 0;
  jpeg_mem_dest(&info, &bytes, &count);
  info.image_width = static_cast<JDIMENSION>(kind.width);
  info.image_height = static_cast<JDIMENSION>(kind.height);
  choose_colours(info, kind);
  jpeg_start_compress(&info, TRUE);
  auto row = jpeg_row(fill, kind);
  auto* pointer = row.data();
  while (info.next_scanline < info.image_height) jpeg_write_scanlines(&info, &pointer, 1);
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::string text(reinterpret_cast<char*>(bytes), count);
  std::free(bytes);
  return text;
}

std::string png_bytes(colour fill, const png_kind& kind) {
  std::string text;
  auto* png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  auto* info = png_create_info_struct(png);
  png_set_write_fn(png, &text, append, nullptr);
  write_png_head(png, info, fill, kind);
  auto row = png_row(fill, kind);
  std::vector<png_bytep> rows(static_cast<std::size_t>(kind.height), row.data());
  png_write_image(png, rows.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return text;
}

}  // namespace troupe::testing
